"""Who is told of a run: in which order, of what, and what comes of what they answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedloom.runs.experiment import Experiment
from fedloom.runs.play import resume, run
from fedloom.runs.result import Result
from fedloom.runs.watch import Callback

SMALL = Experiment(clients=8, per_round=4, rounds=3, training={"epochs": 1})


class Told(Callback):
    """Writes down what it is told."""

    def __init__(self, name: str, book: list[Any], stop_at: int | None = None) -> None:
        self.name, self.book, self.stop_at = name, book, stop_at

    def begin(self, experiment: Experiment, folder: Path | None) -> None:
        self.book.append((self.name, "begin", experiment.rounds, folder))

    def round(self, row: dict[str, Any]) -> str | None:
        self.book.append((self.name, row["round"]))
        return "stop" if row["round"] == self.stop_at else None

    def end(self, result: Result | None) -> None:
        self.book.append((self.name, "end", None if result is None else result.score))


def test_each_is_told_of_everything(tmp_path: Path) -> None:
    book: list[Any] = []
    found = run(SMALL, out=tmp_path / "run", callbacks=[Told("a", book), Told("b", book)])
    rounds = [(name, number) for number in (1, 2, 3) for name in "ab"]
    assert book == [
        *(("a", "begin", 3, tmp_path / "run"), ("b", "begin", 3, tmp_path / "run"), *rounds),
        *(("b", "end", found.score), ("a", "end", found.score)),
    ]
    del book[:]
    resume(tmp_path / "run", rounds=4, callbacks=[Told("a", book)])
    assert [one[1] for one in book] == ["begin", 4, "end"]


def test_one_may_stop_the_run_and_all_hear_of_the_round() -> None:
    book: list[Any] = []
    found = run(SMALL, watch=lambda row: book.append(("w", row["round"])), callbacks=[Told("a", book, 2)])
    assert len(found.rounds) == 2
    assert book[1:-1] == [("w", 1), ("a", 1), ("w", 2), ("a", 2)]


def test_all_that_were_told_of_a_begin_are_told_of_the_end() -> None:
    book: list[Any] = []

    class Broken(Callback):
        def begin(self, experiment: Experiment, folder: Path | None) -> None:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run(SMALL, callbacks=[Told("a", book), Broken(), Told("b", book)])
    assert [one[:2] for one in book] == [("a", "begin"), ("a", "end")]
    assert book[-1][2] is None
    del book[:]
    with pytest.raises(ZeroDivisionError):
        run(SMALL, watch=lambda row: 1 / 0, callbacks=[Told("a", book)])
    assert book[-1] == ("a", "end", None)


def test_one_that_wants_nothing_changes_nothing() -> None:
    assert run(SMALL, callbacks=[Callback()]).score == run(SMALL).score
