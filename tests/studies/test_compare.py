"""Costs to a target, comparisons and plans."""

from __future__ import annotations

import json
import sys
from io import StringIO
from math import isnan
from typing import Any

import pytest
from rich.console import Console
from scipy.stats import t as student
from torch.nn import Identity

from fedloom.cli.main import main
from fedloom.cli.show import summary_table
from fedloom.cli.show_studies import comparison_rows, comparison_table
from fedloom.core.goal import Goal
from fedloom.errors import BadExperiment
from fedloom.evaluate.targets import interval, spent, to_target
from fedloom.goals import classes, numbers
from fedloom.runs.experiment import Experiment
from fedloom.runs.result import Result
from fedloom.studies.compare import Contender, compare, ratio_of
from fedloom.studies.plan import Option, Plan, plan

ROWS = [
    {"score": 0.1, "virtual_seconds": 2.0, "bytes_up": 10, "bytes_down": 5, "clients": 4, "joules": 1.0},
    {"score": None, "virtual_seconds": 3.0, "bytes_up": 10, "bytes_down": 5, "clients": 4, "joules": 1.0},
    {"score": 0.6, "virtual_seconds": 4.0, "bytes_up": 10, "bytes_down": 5, "clients": 4, "joules": 1.0},
    {"score": 0.4, "virtual_seconds": 5.0, "bytes_up": 10, "bytes_down": 5, "clients": 4, "joules": 1.0},
]
SMALL = {"clients": 10, "per_round": 4, "rounds": 4, "training": {"epochs": 1}}


def result(rows: list[dict[str, Any]], goal: Goal | None = None) -> Result:
    """What a run with these rows returns."""
    known = [{**row, "evaluation_seconds": 1.0} for row in rows]
    return Result(Experiment(), Identity(), known, 1.0, None, {}, {}, goal or classes())


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
            results.append(result(rows if factor else [{**row, "score": 0.1} for row in rows]))  # never gets there
        return Contender(name, tuple(results))

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


def test_low_scores_are_compared_from_above() -> None:
    def contender(name: str, *ends: float | None) -> Contender:
        scores = [[9.0, None, 2.0, end] for end in ends]  # a None in between was not evaluated
        runs = [[{**row, "score": score} for row, score in zip(ROWS, own)] for own in scores]
        return Contender(name, tuple(result(rows, numbers()) for rows in runs))

    assert to_target(contender("", 4.0).results[0].rounds, 3.0, "low") == (3, 9.0, 45.0, 3.0)
    assert to_target(contender("", 4.0).results[0].rounds, 1.9, "low") is None
    first, second, third = contender("first", 4.0, 1.0), contender("second", 2.5, 3.5), contender("third", None, 1.0)
    assert first.score().mean == 2.5
    assert first.best().mean == 1.5, "the lowest of every run, and no 0 for what was not evaluated"
    assert isnan(third.score().mean), "a run that diverged is not better for it"
    assert len(first.reached(2.0)) == 2
    assert len(first.reached(1.0)) == 1, "as good as the target reaches it"
    rows = comparison_rows([first, second, third], 1.0)
    assert [row["reached"] for row in rows] == [1, 0, 1]
    assert rows[0]["rounds"]["mean"] == 4
    assert (rows[0]["score_name"], rows[0]["score"]["mean"], rows[0]["best_score"]["mean"]) == ("rmse", 2.5, 1.5)
    assert not rows[0].keys() & {"accuracy", "best_accuracy"}
    screen = Console(file=StringIO(), width=140)
    screen.print(comparison_table([first, second, third], 1.0))
    text = " ".join(screen.file.getvalue().split())  # type: ignore[attr-defined]
    for words in ("RMSE", "2.500", "costs to reach RMSE 1", "RMSE: lower is better"):
        assert words in text


def test_accuracies_keep_their_names() -> None:
    (row,) = comparison_rows([Contender("one", (result(ROWS),))], 0.5)
    assert row["accuracy"] == row["score"] == {"mean": 0.4, "half": None, "seeds": 1}
    assert row["best_accuracy"] == row["best_score"] == {"mean": 0.6, "half": None, "seeds": 1}


def test_the_summary_of_a_low_score() -> None:
    facts = {"rmse": 2.5, "mae": 2.0, "r2": -0.5, "loss": 6.25, "personal_score": 12.5, "examples_trained": 1}
    facts |= {"rejected": 0, "wall_seconds": 1.0}
    rows = [{**row, **facts, "score": score} for row, score in zip(ROWS, (9.0, 2.0, 4.0, 2.5))]
    screen = Console(file=StringIO(), width=140)
    screen.print(summary_table(result(rows, numbers())))
    text = " ".join(screen.file.getvalue().split())  # type: ignore[attr-defined]
    assert "RMSE │ 2.500 (best 2.000, lower is better)" in text
    assert "clients' own RMSE │ 12.50 (mean over clients)" in text
    assert "weakest class" not in text


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
    with pytest.raises(BadExperiment, match=r"target is 1\.5; the accuracy to reach lies above 0 and up to 1"):
        plan(Experiment(**SMALL, fleet="iot"), 1.5, ["fedavg"])
    with pytest.raises(BadExperiment, match=r"target is -2; the RMSE to reach is a number of at least 0"):
        plan(Experiment(**SMALL, fleet="iot", goal="numbers", data="mine.npz", partition="iid"), -2, ["fedavg"])


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
