"""Tasks on the virtual clock, and the charts that are made of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedloom.report.group import Group, read_groups
from fedloom.report.pace import busy_of, staleness_of, steps_of, timed, work_of
from fedloom.report.recorded import read_run
from fedloom.report.sections import sections_of
from fedloom.report.tasks import COUNTED, KINDS, tasks_of
from fedloom.report.timeline import LANES, SPANS, timeline_of
from report.asynchronous import asynchronous
from report.folders import small


@pytest.fixture
def groups(tmp_path: Path) -> list[Group]:
    return read_groups([asynchronous(tmp_path / "async")])[0]


def kinds(tasks) -> list[str]:
    return [KINDS[kind] for kind in tasks.kinds()]


# ---- tasks


def test_tasks_stand_where_they_were_asked(groups):
    tasks = tasks_of(groups[0].runs[0])
    assert tasks.asked.tolist() == [0, 0, 0, 6, 6]
    assert tasks.end.tolist() == [4, 6, 8, 10, 10]
    assert tasks.taken.tolist()[:4] == [6, 6, 10, 10]
    assert kinds(tasks) == [COUNTED, "upload lost", COUNTED, COUNTED, "in flight"]


def test_tasks_in_flight_are_told_apart(groups):
    run = groups[0].runs[0]
    assert len(run.clients["round"]) == 4
    assert run.in_flight["client"].tolist() == [3]


def test_rounds_with_a_barrier_begin_where_the_round_before_ended(tmp_path):
    settings = {"fleet": "iot", "world.first": 3, "per_round": 5, "channel.up": 0.3}
    run = read_run(small(tmp_path / "run", **settings))
    tasks, made = tasks_of(run), np.cumsum([row["virtual_seconds"] for row in run.rows])
    assert set(tasks.asked.tolist()) <= {0.0, *made.tolist()}
    assert (tasks.end <= tasks.taken + 1e-9).all(), "nobody is awaited beyond the round"
    assert tasks.spent.sum() == pytest.approx(run.clients["seconds"].sum())
    assert tasks.spent.sum() > tasks.seconds.sum(), "but some worked on"
    assert tasks.counted.sum() == sum(row["arrived"] for row in run.rows)


def test_runs_without_devices_have_none(plain):
    groups, _ = read_groups([plain("run")])
    assert tasks_of(groups[0].runs[0]) is None
    assert timed(groups) == []
    assert not {"timeline", "busy", "staleness", "work", "speeds"} & {one.key for one in sections_of(groups, (), True)}


# ---- charts


def test_the_timeline_has_every_task(groups):
    chart, notes = timeline_of(timed(groups))
    (lanes,) = chart.by["fedavg"].values()
    assert lanes.names == ["0", "1", "2", "3"], "the fastest on top"
    assert lanes.steps == [(1, 6.0), (2, 10.0)]
    found = [(span.lane, span.start, span.phases, span.taken, span.fate, span.staleness) for span in lanes.spans]
    assert sorted(found) == [
        (0, 0.0, (1.0, 2.0, 1.0), 6.0, COUNTED, 0),
        (0, 6.0, (1.0, 2.0, 1.0), 10.0, COUNTED, 0),
        (1, 0.0, (1.0, 3.0, 2.0), None, "upload lost", 0),
        (2, 0.0, (2.0, 4.0, 2.0), 10.0, COUNTED, 1),
        (3, 6.0, (3.0, 1.0, 0.0), None, "in flight", 1),
    ]
    assert (lanes.oldest, list(chart.fates), lanes.unit) == (1, ["upload lost", "in flight"], "s")
    assert notes == ["fedavg: seed 0, all clients at work."]


def test_a_large_run_is_thinned(tmp_path):
    run = small(tmp_path / "run", fleet="iot", clients=60, per_round=40, rounds=30)
    chart, notes = timeline_of(timed(read_groups([run])[0]))
    assert list(chart.by["fedavg"]) == ["beginning", "end"]
    for lanes in chart.by["fedavg"].values():
        assert len(lanes.names) <= LANES
        assert len(lanes.spans) <= SPANS
        assert all(span.start < lanes.end for span in lanes.spans)
    assert "24 of the clients at work" in notes[0]


def test_a_crowded_window_is_shorter(tmp_path, monkeypatch):
    run = small(tmp_path / "run", fleet="iot", clients=30, per_round=20, rounds=8)
    groups = timed(read_groups([run])[0])
    before = timeline_of(groups)[0].by["fedavg"]["end"]
    monkeypatch.setattr("fedloom.report.timeline.SPANS", 60)
    windows = timeline_of(groups)[0].by["fedavg"]
    assert list(windows) == ["beginning", "end"]
    tasks = groups[0][1][0][1]
    for lanes in windows.values():
        assert 0 < len(lanes.spans) <= 60
        assert lanes.wide < before.wide
        here = (
            (tasks.end > lanes.start) & (tasks.asked < lanes.end) & np.isin(tasks.client, [int(n) for n in lanes.names])
        )
        assert abs(here.sum() - len(lanes.spans)) <= len(lanes.names), "all that is there, but for what is rounded"
    assert windows["end"].end == pytest.approx(before.end, rel=1e-3)


def test_seconds_are_split_by_fate(groups):
    bars, table = work_of(timed(groups))
    shares = {one.label: one.values[0] for one in bars.series}
    parts = {"counted": 16 / 26, "upload lost": 6 / 26, "in flight at the end": 4 / 26}
    assert shares == {name: pytest.approx(100 * part, rel=1e-4) for name, part in parts.items()}
    assert table.rows == [["fedavg", "26.0 s", "6.0 s", "23.1 %", "10.0 J", "200.0 B"]]


def test_staleness_is_that_of_counted_replies(groups):
    bars, table = staleness_of(timed(groups))
    assert (bars.categories, bars.series[0].values) == (
        ["0", "1"],
        [pytest.approx(2 / 3, rel=1e-4), pytest.approx(1 / 3, rel=1e-4)],
    )
    assert table.rows[0][-1] == "3"


def test_replies_are_counted_by_speed(groups):
    bars = steps_of(timed(groups))
    assert bars.categories == ["fastest", "2", "3", "slowest"]
    assert bars.series[0].values == [pytest.approx(2 / 3, rel=1e-4), 0, pytest.approx(1 / 3, rel=1e-4), 0]


def test_clients_at_work_are_means_over_time(groups, tmp_path):
    chart = busy_of(timed(groups))
    (line,) = chart.lines
    assert line.x["time"] == [6.0, 10.0]
    assert line.y["in_flight"].mean == [2.5, 2.5]
    assert line.y["waiting"].mean == [pytest.approx(2 / 6, rel=1e-4), pytest.approx(2 / 4, rel=1e-4)]
    assert line.y["staleness"].mean == [0.5, 1.5]
    run = small(tmp_path / "run", fleet="equal", per_round=4, partition="iid")
    (line,) = busy_of(timed(read_groups([run])[0])).lines
    assert line.y["in_flight"].mean == pytest.approx([4.0] * 4, rel=0.02), "equal devices are all at work"
    assert "staleness" not in line.y


def test_a_page_with_both_kinds_is_drawn(groups, tmp_path):
    both = read_groups([tmp_path / "async", small(tmp_path / "run", fleet="iot", per_round=4)])[0]
    keys = [one.key for one in sections_of(both, (), True) if one.chart is not None]
    assert [key for key in keys if key in ("timeline", "busy", "staleness", "work", "speeds")] == [
        *("timeline", "busy", "staleness", "work", "speeds")
    ]
