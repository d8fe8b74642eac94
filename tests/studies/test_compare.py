"""Costs to a target, comparisons and plans."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
from scipy.stats import t as student

from fedloom.cli.main import main
from fedloom.cli.show import comparison_rows, comparison_table
from fedloom.errors import BadExperiment
from fedloom.evaluate.targets import interval, spent, to_target
from fedloom.runs.experiment import Experiment
from fedloom.studies.compare import Contender, compare, ratio_of
from fedloom.studies.plan import Option, Plan, plan

ROWS = [
    {"accuracy": 0.1, "virtual_seconds": 2.0, "bytes_up": 10, "bytes_down": 5, "joules": 1.0},
    {"accuracy": None, "virtual_seconds": 3.0, "bytes_up": 10, "bytes_down": 5, "joules": 1.0},
    {"accuracy": 0.6, "virtual_seconds": 4.0, "bytes_up": 10, "bytes_down": 5, "joules": 1.0},
    {"accuracy": 0.4, "virtual_seconds": 5.0, "bytes_up": 10, "bytes_down": 5, "joules": 1.0},
]
SMALL = {"clients": 10, "per_round": 4, "rounds": 4, "training": {"epochs": 1}}


def test_the_first_time_counts() -> None:
    assert to_target(ROWS, 0.5) == (3, 9.0, 45.0, 3.0)
    assert to_target(ROWS, 0.1) == (1, 2.0, 15.0, 1.0)
    assert to_target(ROWS, 0.7) is None


def test_what_no_world_says_is_unknown() -> None:
    rows = [{**row, "virtual_seconds": None, "joules": None} for row in ROWS]
    assert spent(rows, 4) == (4, None, 60.0, None)


def test_interval_is_students() -> None:
    values = [0.5, 0.6, 0.9]
    found = interval(values)
    low, high = student.interval(0.95, 2, loc=found.mean, scale=found.half / student.ppf(0.975, 2))
    assert found.mean == pytest.approx(2 / 3)
    assert (low, high) == pytest.approx((found.mean - found.half, found.mean + found.half))
    assert interval([0.5]) == (0.5, None, 1)


def test_every_seed_is_run_and_worlds_are_the_same() -> None:
    base = {**SMALL, "fleet": "table4", "channel": {"name": "bernoulli", "settings": {"up": 0.5}}}
    told: list[tuple[str, int]] = []
    runs = compare(
        {"one": Experiment(**base), "two": Experiment(**base, method="fedprox")},
        (0, 1),
        lambda name, seed, row: told.append((name, seed)),
    )
    assert [(one.name, len(one.results)) for one in runs] == [("one", 2), ("two", 2)]
    each = [(name, seed) for name in ("one", "two") for seed in (0, 1)]
    assert told == [one for pair in (each[:2], each[2:]) for _ in range(4) for one in pair], "seeds side by side"
    for ours, theirs in zip(runs[0].results, runs[1].results):
        assert [row["arrived"] for row in ours.rounds] == [row["arrived"] for row in theirs.rounds]
        assert [row["virtual_seconds"] for row in ours.rounds] == [row["virtual_seconds"] for row in theirs.rounds]
    with pytest.raises(BadExperiment, match="needs one of each"):
        compare({}, (0,))


def test_costs_are_compared_seed_by_seed() -> None:
    def contender(name: str, *factors: float | None) -> Contender:
        results = []
        for factor in factors:
            rows = [{**row, "virtual_seconds": row["virtual_seconds"] * (factor or 1)} for row in ROWS]
            rows = rows if factor else [{**row, "accuracy": 0.1} for row in rows]  # never gets there
            results.append(SimpleNamespace(rounds=rows, accuracy=rows[-1]["accuracy"]))
        return Contender(name, tuple(results))  # type: ignore[arg-type]

    first, second = contender("first", 1, 10, 3, None), contender("second", 2, 20, None, 5)
    assert [cost and cost.seconds for cost in first.costs(0.5)] == [9, 90, 27, None]
    assert [cost.seconds for cost in second.reached(0.5)] == [18, 180, 45]
    found = ratio_of(second, first, 0.5, "seconds")
    assert found == (2.0, 0.0, 2), "of the two seeds in which both got there, though costs differ tenfold"
    assert ratio_of(second, first, 0.9, "seconds") is None
    assert ratio_of(first, first, None, "bytes") == (1.0, 0.0, 4)
    rows = comparison_rows([first, second], 0.5)
    assert (rows[1]["seconds_ratio"]["mean"], rows[1]["reached"]) == (2.0, 3)
    assert comparison_table([first, second], 0.5).row_count == 2


def option(name: str, seconds: float, size: float, joules: float) -> Option:
    return Option(name, Experiment(), 1.0, seconds, size, joules)


def test_the_front_is_what_none_beats() -> None:
    options = (option("a", 1, 9, 5), option("b", 2, 3, 4), option("c", 3, 3, 4), option("d", 4, 1, 9))
    found = Plan(0.5, options, ())
    assert [one.name for one in found.front] == ["a", "b", "d"]
    best = {what: found.best(what) for what in ("seconds", "bytes", "joules")}
    assert {what: one.name for what, one in best.items() if one} == {"seconds": "a", "bytes": "d", "joules": "b"}
    assert Plan(0.5, (), ()).best("seconds") is None


def test_a_plan_tries_methods_and_codecs() -> None:
    experiment = Experiment(**{**SMALL, "rounds": 8}, fleet="iot")
    found = plan(experiment, 0.15, ["fedavg", "fjord"])
    names = {one.name for one in found.options} | {one.name for one in found.missed}
    assert names == {"fedavg", "fedavg, int8", "fjord", "fjord, int8"}
    whole, rounded = (next(o for o in found.options if o.name == name) for name in ("fedavg", "fedavg, int8"))
    assert rounded.bytes / rounded.rounds < whole.bytes / whole.rounds
    assert [one.seconds for one in found.options] == sorted(one.seconds for one in found.options)


def test_a_plan_needs_devices_and_a_target() -> None:
    with pytest.raises(BadExperiment, match="fleet is 'none'"):
        plan(Experiment(**SMALL), 0.5, ["fedavg"])
    with pytest.raises(BadExperiment, match=r"target is 1\.5"):
        plan(Experiment(**SMALL, fleet="iot"), 1.5, ["fedavg"])


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fedloom", *words])
    with pytest.raises(SystemExit) as done:
        main()
    return int(done.value.code or 0)


FEW = ("--clients", "10", "--rounds", "3", "--set", "per_round=4")


def test_the_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("fedavg", "fedprox", "--seeds", "2", "--target", "0.05", "--fleet", "table4", "--set", "mu=0.5", *FEW)
    assert command(monkeypatch, "compare", *words, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in found["methods"]] == ["fedavg", "fedprox"]
    assert all(row["reached"] == 2 and row["seconds"]["mean"] > 0 for row in found["methods"])
    assert command(monkeypatch, "compare", *words) == 0
    assert "relative to fedavg" in " ".join(capsys.readouterr().out.split())
    planned = ("plan", "--fleet", "iot", "--target", "0.05", "--methods", "fedavg,fjord", *FEW)
    assert command(monkeypatch, *planned, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["options"]) == 4
    assert command(monkeypatch, *planned) == 0
    assert "soonest" in capsys.readouterr().out
    assert command(monkeypatch, "compare", "fedavg", "fedprx", *FEW) == 2
    assert "did you mean 'fedprox'?" in capsys.readouterr().err
    assert command(monkeypatch, "compare", "fedavg", "--set", "nu=1", *FEW) == 2
    assert command(monkeypatch, "plan", "--fleet", "ipt", "--target", "0.5") == 2
    assert "did you mean 'iot'?" in capsys.readouterr().err
