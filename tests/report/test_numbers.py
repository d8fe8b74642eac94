"""Charts show the numbers of the run folders' tables."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from fedloom.cli.main import app
from fedloom.evaluate.coverage import LOOKS, REPLIES
from fedloom.evaluate.targets import to_target
from fedloom.report.charts import spaced, tidy
from fedloom.report.command_line import command_of
from fedloom.report.curves import curves_of
from fedloom.report.fleet import LOST, SHARE, fairness_of, fates_of, losses_of, shares_of, virtual_time_of, wall_time_of
from fedloom.report.group import Group, labels_of, read_groups
from fedloom.report.models import classes_of, coverage_of, order_of, similarity_of
from fedloom.report.plotly_charts import plotly_chart
from fedloom.report.sections import sections_of
from fedloom.report.tables import costs_of, final_of, own_target, summary, target_table
from fedloom.runs.experiment import Experiment
from report.folders import small


@pytest.fixture(scope="module")
def groups(folders) -> list[Group]:
    return read_groups(folders)[0]


def table(folder: Path, name: str = "rounds") -> dict[str, list]:
    return pq.read_table(folder / f"{name}.parquet").to_pydict()


def test_runs_of_one_experiment_are_one_group(groups):
    assert [group.label for group in groups] == ["fedavg", "feddd", "safari"]
    assert [len(group.runs) for group in groups] == [2, 1, 1]
    assert len({group.colour for group in groups}) == 3


def test_curves_are_the_tables(folders, groups):
    curves, _ = curves_of(groups, ())
    one, two = (table(folder) for folder in folders[:2])
    line = curves.lines[0]
    both = np.array([one["accuracy"], two["accuracy"]])
    np.testing.assert_allclose(np.array(line.y["accuracy"].mean), both.mean(0), rtol=1e-4)
    np.testing.assert_allclose(np.array(line.y["accuracy"].low), both.min(0), rtol=1e-4)
    np.testing.assert_allclose(np.array(line.y["accuracy"].high), both.max(0), rtol=1e-4)
    assert line.x["rounds"] == [1, 2, 3, 4]
    moved = np.mean([np.cumsum(np.add(t["bytes_up"], t["bytes_down"])) for t in (one, two)], axis=0)
    assert curves.axes["bytes"].endswith("(kB)")
    np.testing.assert_allclose(line.x["bytes"], moved / 1e3, rtol=1e-4)
    assert list(curves.axes) == ["rounds", "time", "bytes", "energy", "wall"]
    lone = table(folders[2])
    np.testing.assert_allclose(
        np.array(curves.lines[1].x["time"]) / curves.lines[1].x["time"][-1],
        np.cumsum(lone["virtual_seconds"]) / np.sum(lone["virtual_seconds"]),
        rtol=1e-3,
    )


def test_classes_and_fairness_are_the_last_evaluation(folders, groups):
    bars, _ = classes_of(groups)
    assert bars is not None
    last = [table(folder)["per_class"][-1] for folder in folders[:2]]
    np.testing.assert_allclose(np.array(bars.series[0].values), np.mean(last, axis=0), rtol=1e-4)
    ranks, cells, _ = fairness_of(groups)
    assert ranks is not None
    assert cells is not None
    own = load_file(folders[2] / "kept.safetensors")["personal_score"]
    assert len(own) == 8
    np.testing.assert_allclose(ranks.groups[1][1], np.sort(own), atol=1e-4)
    assert cells.rows[1][1] == f"{table(folders[2])['personal_accuracy'][-1]:.3f}"


def test_shares_are_the_clients_table(folders, groups):
    maps, notes = shares_of(groups)
    assert maps is not None
    columns = table(folders[2], "clients")
    shown = maps.by["feddd"]
    assert shown[SHARE].x == [1, 2, 3, 4]
    for number, client, share, arrived in zip(*(columns[n] for n in ("round", "client", "share", "arrived"))):
        assert shown[SHARE].z[client][number - 1] == pytest.approx(share, abs=0.006)
        assert shown[LOST].z[client][number - 1] == (not arrived)
    part = maps.by["fedavg"][SHARE]
    assert sum(value is not None for row in part.z for value in row) == 16  # 4 of 8 in 4 rounds
    assert notes == ["fedavg, feddd, safari: seed 0."]


def test_losses_add_up(folders, groups):
    run = groups[0].runs[0]
    counts = fates_of(run)
    columns = table(folders[0], "clients")
    assert counts["arrived"] == sum(columns["arrived"])
    assert sum(counts.values()) == len(columns["arrived"])
    assert counts["upload lost"] > 0
    bars, cells = losses_of(groups)
    assert bars is not None
    assert cells is not None
    for place in range(3):
        assert sum(series.values[place] or 0 for series in bars.series) == pytest.approx(100, abs=0.1)


def test_refused_replies_are_named(tmp_path):
    folder = small(tmp_path / "run", attack="scaling", admit="careful", partition="iid", rounds=3)
    (group,), _ = read_groups([folder])
    rounds = table(folder)
    refused = sum(rounds["rejected"])
    counts = fates_of(group.runs[0])
    assert sum(count for name, count in counts.items() if name.startswith("refused: ")) == refused


def test_time_is_split_without_a_rest(groups):
    bars = virtual_time_of(groups)
    assert bars is not None
    assert [series.label for series in bars.series] == ["download", "training", "upload", "waiting for others"]
    lasting = np.mean([row["virtual_seconds"] for row in groups[1].runs[0].rows])
    assert sum(series.values[1] or 0 for series in bars.series) == pytest.approx(lasting, rel=1e-3)
    wall = wall_time_of(groups)
    assert wall is not None
    spent = sum(row["evaluation_seconds"] for row in groups[2].runs[0].rows)
    assert wall.series[1].values[2] == pytest.approx(spent, rel=1e-2)


def test_targets_are_those_of_compare(groups):
    rows = [run.rows for run in groups[0].runs]
    target = min(max(row["accuracy"] for row in one) for one in rows)
    assert costs_of(groups[0], target) == [to_target(one, target) for one in rows]
    assert costs_of(groups[0], 1.0) == []
    assert target_table(groups, 1.0).rows[0][1:3] == ["0 of 2", "never"]
    final = final_of(groups[0])
    assert final is not None
    assert final.seeds == 2
    assert summary(groups).rows[0][1].startswith(f"{final.mean:.3f} ± ")
    assert all(
        t <= min(max(row["accuracy"] for row in run.rows) for g in groups for run in g.runs) for t in own_target(groups)
    )


def test_coverage_counts_what_arrived(folders, groups):
    strips, _ = coverage_of(groups)
    assert strips is not None
    assert list(strips.by) == ["feddd", "safari"]  # fedavg sends everything
    kept = load_file(folders[2] / "kept.safetensors")
    arrived = sum(table(folders[2], "clients")["arrived"])
    assert kept[REPLIES].tolist() == [arrived, 3]  # the first round's replies are whole
    for name, neurons, values in strips.by["feddd"]:
        np.testing.assert_allclose(values, kept[f"coverage.{name}"] / (LOOKS * arrived), atol=5e-3)
        assert neurons == len(values)
    assert not any(name.startswith("coverage") for name in load_file(folders[0] / "kept.safetensors"))


def test_similarity_is_the_known_table(folders, groups):
    maps, _ = similarity_of(groups)
    assert maps is not None
    shown, kept = maps.by["safari"]["distance"], load_file(folders[3] / "kept.safetensors")["repair.distance"]
    order = [int(name) for name in shown.x]
    assert sorted(order) == list(range(8))
    for row, one in zip(shown.z, order):
        for value, other in zip(row, order):
            if one == other or np.isnan(kept[one, other]):
                assert value is None
            else:
                assert value == pytest.approx(kept[one, other], rel=1e-2)


def test_alike_clients_stand_side_by_side():
    table = np.array([[0, 9, 1, 9], [9, 0, 9, 1], [1, 9, 0, 9], [9, 1, 9, 0]], dtype=float)
    order = order_of(table)
    assert {frozenset(order[:2]), frozenset(order[2:])} == {frozenset({0, 2}), frozenset({1, 3})}


def test_every_figure_is_one_that_plotly_knows(groups):
    graphs = pytest.importorskip("plotly.graph_objects")

    def resolve(value, state):
        if isinstance(value, dict) and "$" in value:
            return resolve(value["of"][state[value["$"]]], state)
        if isinstance(value, dict):
            return {key: resolve(one, state) for key, one in value.items() if one is not None}
        return [resolve(one, state) for one in value] if isinstance(value, list) else value

    sections = [section for section in sections_of(groups, (0.1,), chosen=False) if section.chart is not None]
    assert len(sections) == 13
    for section in sections:
        chart = json.loads(json.dumps(plotly_chart(section.chart), allow_nan=False))
        state = {control["name"]: control["options"][-1][0] for control in chart["controls"]}
        traces = resolve(chart["traces"], {**chart.get("state", {}), **state})
        for trace in traces:  # the page puts in colours
            for part in (trace, *(trace.get(name, {}) for name in ("marker", "line", "textfont"))):
                part.pop("colorscale", None)
                if part.get("color") == "soft":
                    part.pop("color")
        graphs.Figure(
            traces, resolve(chart["layout"], {**chart.get("state", {}), **state})
        )  # refuses what it does not know


@pytest.mark.parametrize("folder", range(4))
def test_the_command_runs_the_same_experiment(folders, folder, monkeypatch, tmp_path):
    experiment = json.loads((folders[folder] / "experiment.json").read_text())["experiment"]
    words = shlex.split(command_of(experiment))
    assert words[:2] == ["fedloom", "run"]
    seen = []

    def caught(experiment: Experiment, **_: object) -> None:
        seen.append(experiment)
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["fedloom.runs.play"], "run", caught)
    CliRunner().invoke(app, [*words[1:], "--out", str(tmp_path / "run")])
    assert seen == [Experiment(**experiment)]


def test_labels_say_what_differs():
    one = Experiment(training={"rate": 0.1}).model_dump(mode="json")
    two = Experiment(training={"rate": 0.2}).model_dump(mode="json")
    other = Experiment(method="fedprox").model_dump(mode="json")
    assert labels_of([one, two, other]) == ["fedavg, rate=0.1", "fedavg, rate=0.2", "fedprox"]


def test_the_same_run_twice_counts_once(plain):
    one, two = plain("one"), plain("two")
    groups, notes = read_groups([one, one, two])
    assert [run.name for run in groups[0].runs] == ["one"]
    assert notes == ["two is left out: it is the same experiment and seed as one."]


def test_long_runs_are_thinned_and_it_is_said(groups):
    group = groups[1]
    row = group.runs[0].rows[-1]
    rows = [{**row, "round": number} for number in range(1, 1001)]
    long = Group("long", 0, (group.runs[0].__class__(**{**vars(group.runs[0]), "rows": rows}),))
    curves, notes = curves_of([long], ())
    assert len(curves.lines[0].x["rounds"]) == 400
    assert (curves.lines[0].x["rounds"][0], curves.lines[0].x["rounds"][-1]) == (1, 1000)
    assert notes == ["long: 400 of 1000 evaluated rounds are drawn, evenly spaced."]


def test_spaced_and_tidy():
    assert spaced(3, 5) == [0, 1, 2]
    assert spaced(101, 11) == list(range(0, 101, 10))
    assert tidy([1.23456789, float("nan"), float("inf"), 0], 3) == [1.23, None, None, 0]
