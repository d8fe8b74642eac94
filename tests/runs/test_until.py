"""Runs that end before their last round: by a score, by seconds, by patience, or because who watches says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedloom.errors import BadExperiment
from fedloom.evaluate.judge import ACCURACY, LOSS
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import resume, run
from fedloom.runs.until import Until
from fedloom.studies.compare import compare

SMALL: dict[str, Any] = {"clients": 8, "per_round": 4, "rounds": 12, "training": {"epochs": 1}}


def rows(*scores: float | None, virtual: float | None = None) -> list[dict[str, Any]]:
    facts = {"wall_seconds": 2.0, "evaluation_seconds": None, "virtual_seconds": virtual}
    return [{"round": number, "score": score, **facts} for number, score in enumerate(scores, 1)]


def test_what_ends_a_run() -> None:
    assert Until(score=0.5).why_over(rows(0.1, 0.6, 0.3), ACCURACY) == "accuracy 0.5 was reached"
    assert Until(score=0.5).why_over(rows(0.1, None, 0.3), ACCURACY) is None
    assert Until(score=0.5).why_over(rows(0.9, 0.6), LOSS) is None
    assert Until(score=0.5).why_over(rows(0.9, 0.4), LOSS) == "loss 0.5 was reached"
    assert Until(seconds=4).why_over(rows(0.1, 0.2), ACCURACY) == "4 seconds have passed"
    assert Until(seconds=4).why_over(rows(0.1, 0.2, virtual=1.0), ACCURACY) is None, "virtual ones, where there are any"
    assert Until(real_seconds=4).why_over(rows(0.1, 0.2, virtual=1.0), ACCURACY) == "4 real seconds have passed"
    assert Until(patience=2).why_over(rows(0.1, 0.3, 0.2, 0.3), ACCURACY) == "accuracy was not better for 2 rounds"
    assert Until(patience=2).why_over(rows(0.1, 0.3, 0.2), ACCURACY) is None
    assert Until(patience=2).why_over(rows(0.3, 0.2, 0.1), LOSS) is None
    assert Until(patience=1).why_over(rows(None, None), ACCURACY) is None
    assert Until(score=0.5).why_over([], ACCURACY) is None
    assert not Until().asked


def test_a_run_is_what_a_longer_one_was_up_to_there(tmp_path: Path) -> None:
    straight = run(Experiment(**SMALL))
    target = straight.rounds[4]["score"]
    first = next(row["round"] for row in straight.rounds if row["score"] >= target)
    found = run(Experiment(**SMALL, until={"score": target}), out=tmp_path / "run")
    assert [row["score"] for row in found.rounds] == [row["score"] for row in straight.rounds[:first]]
    assert f"over after round {first}: accuracy {target:g} was reached" in (tmp_path / "run" / "log.txt").read_text()
    again = resume(tmp_path / "run")
    assert len(again.rounds) == first, "it is still over"


def test_it_goes_on_where_the_end_is_moved(tmp_path: Path) -> None:
    given = Experiment(**SMALL, until={"patience": 1}, evaluate_every=3)
    short = run(given, out=tmp_path / "run")
    assert len(short.rounds) < 12
    assert short.rounds[-1]["score"] is not None, "the last round is evaluated, whichever it is"
    longer = run(Experiment(**{**given.model_dump(), "until": {}}), out=tmp_path / "run", resume=True)
    straight = run(Experiment(**SMALL, evaluate_every=3))
    assert [row["score"] for row in longer.rounds] == [row["score"] for row in straight.rounds]


def test_who_watches_may_end_a_run() -> None:
    told: list[int] = []

    def watch(row: dict[str, Any]) -> str | None:
        told.append(row["round"])
        return "stop" if row["round"] == 3 else None

    found = run(Experiment(**SMALL), watch=watch)
    assert told == [1, 2, 3]
    assert len(found.rounds) == 3
    assert found.score == run(Experiment(**{**SMALL, "rounds": 3})).score
    shown: list[Any] = []
    late = run(Experiment(**SMALL, evaluate_every=5), watch=lambda row: shown.append(row["score"]) or "stop")
    assert [len(late.rounds), late.score] == [1, shown[-1]]
    assert shown[0] is None, "and then once more with its score"


def test_runs_that_are_trained_together_end_by_themselves() -> None:
    alone = run(Experiment(**SMALL, seed=1, until={"score": 0.4}))
    (found,) = compare({"fedavg": Experiment(**SMALL, until={"score": 0.4})}, (0, 1, 2))
    assert len({len(one.rounds) for one in found.results}) > 1, "or this shows nothing"
    assert len(found.results[1].rounds) == len(alone.rounds)


def test_wrong_ends_are_refused() -> None:
    with pytest.raises(BadExperiment, match=r"target is 2; the accuracy to reach lies above 0"):
        Experiment(until={"score": 2})
    with pytest.raises(BadExperiment, match=r"unknown key 'scor'; did you mean 'score'"):
        Experiment(until={"scor": 0.5})
    with pytest.raises(BadExperiment, match=r"until.patience is 0"):
        Experiment(until={"patience": 0})
