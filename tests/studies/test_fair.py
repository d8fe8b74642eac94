"""What makes a comparison fair, and the folders that a study leaves and goes on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import ttest_rel
from torch.nn import Identity

from fedloom.errors import BadExperiment
from fedloom.goals import classes
from fedloom.report.group import read_groups
from fedloom.report.results import load_result
from fedloom.runs.experiment import Experiment
from fedloom.runs.result import Result
from fedloom.studies import played
from fedloom.studies.checks import differences, trains
from fedloom.studies.compare import Contender, compare, on_one_fleet, paired, significant

SMALL: dict[str, Any] = {"clients": 10, "per_round": 4, "rounds": 3, "training": {"epochs": 1}}


def contender(*scores: float | None) -> Contender:
    rows = [{"score": score, "evaluation_seconds": 1.0} for score in scores]
    return Contender("", tuple(Result(Experiment(), Identity(), [row], 1.0, None, {}, {}, classes()) for row in rows))


def test_all_are_checked_before_the_first_is_trained() -> None:
    told: list[Any] = []
    early = {"name": "fedspu", "settings": {"early_stopping": True}}
    made = {"fedavg": Experiment(**SMALL), "mine": Experiment(**SMALL, method=early)}
    with pytest.raises(BadExperiment, match=r"^mine: split keeps nothing back"):
        compare(made, (0,), lambda *row: told.append(row))
    assert not told


def test_differences_are_paired_by_seed() -> None:
    ours, theirs = (0.5, 0.72, 0.61, 0.8), (0.4, 0.66, 0.5, 0.78)
    found = paired(contender(*ours), contender(*theirs))
    known = ttest_rel(ours, theirs)
    assert found is not None
    assert found.p == pytest.approx(known.pvalue)
    low, high = known.confidence_interval(0.95)
    assert (found.mean - (found.half or 0), found.mean + (found.half or 0)) == pytest.approx((low, high))
    assert paired(contender(0.5), contender(0.25)) is not None
    assert vars(paired(contender(0.5), contender(0.25)) or found) == {"mean": 0.25, "half": None, "p": None}
    assert paired(contender(0.5, None), contender(0.4, 0.3)) is None, "a run that diverged has no score"


def test_several_comparisons_are_harder_to_pass() -> None:
    first = contender(0.50, 0.60, 0.70)
    close = contender(0.52, 0.634, 0.726)  # p = 0.022 by itself
    strong = contender(0.8, 0.9, 1.0005)
    p = paired(close, first)
    assert p is not None
    assert p.p is not None
    assert 0.05 / 3 < p.p < 0.05
    assert significant([first, close]) == [False, True]
    assert significant([first, close, first, first]) == [False] * 4, "one of three"
    assert significant([first, strong, close]) == [False, True, True], "Holm: the second is one of one"


def test_settings_that_mean_something_else_are_said() -> None:
    every = {name: Experiment(method=name) for name in ("fedavg", "fedprox", "safari")}
    assert differences(every, {"rate": 0.1, "clients": 5}) == [
        "rate=0.1 does not mean the same to all methods: SGD in fedavg, fedprox; Adam in safari"
    ]
    assert differences({name: every[name] for name in ("fedavg", "fedprox")}, {"rate": 0.1, "mu": 1}) == [
        "mu=1 goes to fedprox; fedavg has no such setting"
    ]
    assert trains(every["fedavg"].build_method()) == "SGD 0.1; 5 epochs of 10"


def test_a_study_leaves_folders_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"fedavg": Experiment(**SMALL), "fedprox, mu=1": Experiment(**SMALL, method="fedprox")}
    told: list[tuple[str, int]] = []

    def stop(name: str, seed: int, row: dict[str, Any]) -> None:
        told.append((name, seed))
        if len(told) == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(made, (0, 1), stop, out=tmp_path)
    notes: list[str] = []
    resumed = compare(made, (0, 1), tell=notes.append, out=tmp_path)
    assert notes[0] == "2 of 4 runs are finished already and are read from their folders"
    straight = compare(made, (0, 1))
    for ours, theirs in zip(resumed, straight):
        assert [one.score for one in ours.results] == [one.score for one in theirs.results]
        assert ours.score() == theirs.score()
    names = ["fedavg-seed-0", "fedavg-seed-1", "fedprox-mu=1-seed-0", "fedprox-mu=1-seed-1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    log = (tmp_path / names[0] / "log.txt").read_text()
    assert log.count("finished") == log.count("memory: ") == 1, "of runs that are trained together each has its own log"
    groups, notes = read_groups([tmp_path])
    assert [(group.label, len(group.runs)) for group in groups] == [("fedavg", 2), ("fedprox", 2)]
    monkeypatch.setattr(played, "run_all", lambda jobs, *more, **named: [1 / 0 for _ in jobs])
    assert [one.score() for one in compare(made, (0, 1), out=tmp_path)] == [one.score() for one in straight]
    changed = {"fedavg": Experiment(**{**SMALL, "rounds": 2})}
    monkeypatch.undo()
    with pytest.raises(BadExperiment, match="rounds was 3 when this run was begun and is 2 now"):
        compare(changed, (0,), out=tmp_path)


def test_a_result_is_read_from_its_folder(tmp_path: Path) -> None:
    (found,) = compare({"fedavg": Experiment(**SMALL)}, (0,), out=tmp_path)
    made, read = found.results[0], load_result(tmp_path / "fedavg-seed-0")
    assert read.experiment == made.experiment
    assert (read.score, read.best_score) == (made.score, made.best_score)
    for name, value in made.model.state_dict().items():
        assert read.model.state_dict()[name].equal(value)
    ours, theirs = (json.loads(json.dumps(one.summary())) for one in (read, made))
    assert {k: v for k, v in ours.items() if k != "wall_seconds"} == {
        k: v for k, v in theirs.items() if k != "wall_seconds"
    }


def test_a_fleet_that_one_method_brings_is_that_of_all() -> None:
    notes: list[str] = []
    made = {"fedavg": Experiment(**SMALL), "feddd": Experiment(clients=10, rounds=3, method="feddd")}
    brought = made["feddd"].fleet.name
    assert brought != "none"
    found = on_one_fleet(made, notes.append)
    assert {name: one.fleet.name for name, one in found.items()} == {"fedavg": brought, "feddd": brought}
    assert notes == [f"on fleet '{brought}', as the others: fedavg"]
