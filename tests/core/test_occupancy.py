"""What is summed between two steps."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from fedloom.core.occupancy import Occupancy


def test_slots_and_replies_are_weighed_by_time():
    occupancy = Occupancy(slots=4)
    occupancy.pass_time(2.0, in_flight=4, waiting=0)
    occupancy.pass_time(6.0, in_flight=1, waiting=2)
    columns = occupancy.end_interval(in_flight=0)
    assert columns == {"in_flight": (8 + 6) / 8, "waited_seconds": 12.0, "idle_seconds": 18.0}


def test_a_step_begins_anew():
    occupancy = Occupancy(slots=2)
    occupancy.pass_time(5.0, 1, 1)
    occupancy.end_interval(1)
    occupancy.pass_time(1.0, 2, 0)
    assert occupancy.end_interval(2) == {"in_flight": 2.0, "waited_seconds": 0.0, "idle_seconds": 0.0}


def test_two_steps_at_one_instant():
    occupancy = Occupancy(slots=3)
    assert occupancy.end_interval(in_flight=2) == {"in_flight": 2.0, "waited_seconds": 0.0, "idle_seconds": 0.0}


SPANS = st.lists(st.tuples(st.floats(0, 1e4), st.integers(0, 9), st.integers(0, 9)), min_size=1)


@given(SPANS)
def test_held_and_empty_slots_fill_the_time(spans):
    occupancy, time = Occupancy(slots=9), sum(seconds for seconds, *_ in spans)
    for span in spans:
        occupancy.pass_time(*span)
    columns = occupancy.end_interval(0)
    assert columns["in_flight"] * time + columns["idle_seconds"] == pytest.approx(9 * time)
    assert columns["waited_seconds"] == pytest.approx(sum(seconds * waiting for seconds, _, waiting in spans))
