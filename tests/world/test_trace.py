"""A trace is a step function of time that repeats."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st

from fedloom.errors import BadData
from fedloom.world.trace import Trace, read_trace

TEXT = """time,client,available,up_factor,down_factor
0,0,1,1,1
10,0,0,0.5,2
20,0,1,0.25,1
5,1,1,3,1
15,1,0,1,1
"""


def trace_of(folder: Path, text: str, total: int = 3, **settings: object) -> Trace:
    """A trace from a file."""
    (folder / "trace.csv").write_text(text)
    return read_trace(folder / "trace.csv", total, **settings)


def at(trace: Trace, second: float, client: int) -> tuple[bool, float, float]:
    """One client at a moment."""
    link = trace(torch.tensor([client]), torch.tensor(second, dtype=torch.float64))
    return bool(link.available[0]), float(link.up[0]), float(link.down[0])


def test_steps_hold_until_the_next_and_wrap_around(tmp_path):
    trace = trace_of(tmp_path, TEXT)
    assert trace.period == 25  # the last step is as long as the one from 15 to 20
    assert at(trace, 0, 0) == at(trace, 9.99, 0) == at(trace, 25, 0) == (True, 1, 1)
    assert at(trace, 10, 0) == at(trace, 60.5, 0) == (False, 0.5, 2)
    assert at(trace, 24.9, 0) == (True, 0.25, 1)
    assert at(trace, 0, 1) == at(trace, 4.9, 1) == (False, 1, 1), "before its first row as after its last"
    assert at(trace, 5, 1) == (True, 3, 1)
    assert at(trace, 12, 2) == (True, 1, 1), "no rows: always there"
    assert trace_of(tmp_path, TEXT, period=40.0).period == 40


def test_each_client_may_have_its_own_moment(tmp_path):
    link = trace_of(tmp_path, TEXT)(torch.tensor([0, 0, 1]), torch.tensor([3.0, 12.0, 7.0], dtype=torch.float64))
    assert link.available.tolist() == [True, False, True]
    assert link.up.tolist() == [1, 0.5, 3]


def test_clients_that_are_left_out_renumber_the_others(tmp_path):
    trace = trace_of(tmp_path, TEXT, clients=torch.tensor([1, 2]))
    assert at(trace, 5, 0) == (True, 3, 1)
    assert at(trace, 15, 0) == (False, 1, 1)
    assert at(trace, 15, 1) == (True, 1, 1)


def test_columns_may_be_left_out(tmp_path):
    trace = trace_of(tmp_path, "time,client,up_factor\n0,0,0.5\n")
    assert at(trace, 1234.5, 0) == (True, 0.5, 1)


@settings(max_examples=30)
@given(st.data())
def test_against_a_search_by_hand(tmp_path_factory, data):
    moments = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), min_size=1, max_size=20, unique=True)
    rows = [(second, client, 1 + place) for place, (second, client) in enumerate(data.draw(moments))]
    text = "time,client,up_factor\n" + "".join(f"{t},{c},{f}\n" for t, c, f in rows)
    trace = trace_of(tmp_path_factory.mktemp("trace"), text, 4, period=31.0)
    for second in (0.0, 7.5, 30.0, 31.0, 77.0):
        for client in range(4):
            own = sorted((t, f) for t, c, f in rows if c == client)
            before = [f for t, f in own if t <= second % 31] or [f for _, f in own[-1:]] or [1]
            assert at(trace, second, client)[1] == before[-1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("client,available\n0,1\n", "column time is missing"),
        ("time,client,available\n0,0,0.5\n", "column available, row 0 is 0.5; expected 0 or 1"),
        ("time,client,up_factor\n0,0,1\n1,0,0\n", "column up_factor, row 1 is 0; expected a number above 0"),
        ("time,client,available\n-1,0,1\n", "column time, row 0 is -1"),
        ("time,client,available\n0,9,1\n", "column client, row 0 is 9"),
        ("time,client,available\n0,0,1\n0,1,1\n0,0,0\n", "column time, row 2 is 0; expected every client once a time"),
        ("time,client,present\n0,0,1\n", "unknown column 'present'"),
    ],
)
def test_bad_traces_are_refused(tmp_path, text, said):
    with pytest.raises(BadData, match=said):
        trace_of(tmp_path, text)


def test_a_period_must_hold_all_rows(tmp_path):
    with pytest.raises(BadData, match="column time, row 2 is 20; expected seconds before the period ends, at 20"):
        trace_of(tmp_path, TEXT, period=20.0)


def test_reliability_by_the_second(tmp_path):
    trace = trace_of(tmp_path, "time,client,reliability\n0,0,0.25\n8,0,0\n")
    ids = torch.tensor([0, 1])
    for second, found in ((0.0, [0.25, 1]), (9.0, [0, 1]), (16.0, [0.25, 1])):
        assert trace(ids, torch.tensor(second, dtype=torch.float64)).reliability.tolist() == found
    with pytest.raises(BadData, match=r"column reliability, row 0 is 1\.5; expected a probability between 0 and 1"):
        trace_of(tmp_path, "time,client,reliability\n0,0,1.5\n")
