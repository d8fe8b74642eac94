"""Runs in processes of their own are the runs of one process; a process that dies takes its own runs alone with it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from fedloom.experiment import Experiment
from fedloom.recipes.jobs import Helpers, jobs_for
from fedloom.recipes.play import Played, play
from fedloom.recipes.recipe import Recipe, changed
from fedloom.recipes.store import Store

COMMON: dict[str, Any] = {"clients": 6, "per_round": 3, "rounds": 3, "training": {"epochs": 1}}


def small(rounds: int = 3) -> Recipe:
    plain = Experiment(**{**COMMON, "rounds": rounds})
    experiments = {"FedAvg": plain, "FedProx": Experiment(**{**COMMON, "rounds": rounds}, method="fedprox")}
    return Recipe("small", "digits", experiments, ())


def played(recipe: Recipe, out: Path, helpers: Helpers | None, minutes: float | None = None) -> tuple[Played, int]:
    rows: list[Any] = []
    told = play([recipe], (0, 1), out, "cpu", None, lambda *row: rows.append(row), lambda note: None, minutes, helpers)
    return told, len(rows)


def test_helpers_run_what_one_process_runs(tmp_path: Path) -> None:
    recipe = small()
    alone, rows = played(recipe, tmp_path / "one", None)
    with Helpers(2, tmp_path / "two", "cpu", None) as helpers:
        late, _ = played(recipe, tmp_path / "two", helpers, 0)
        assert (late.ran, late.left) == (0, 4)
        together, heard = played(recipe, tmp_path / "two", helpers)
    assert (together.ran, together.left, together.failed) == (alone.ran, 0, {}) == (4, 0, {})
    assert heard == rows == 12
    for experiment in recipe.experiments.values():
        ours, theirs = (Store(tmp_path / name).load(changed(experiment, seed=1)) for name in ("one", "two"))
        assert ours is not None
        assert theirs is not None
        assert [row["accuracy"] for row in ours.run.rows] == [row["accuracy"] for row in theirs.run.rows]


def test_a_helper_that_dies_is_told(tmp_path: Path) -> None:
    with Helpers(1, tmp_path, "cpu", None) as helpers:
        (process,) = helpers._processes
        os.kill(process.pid, signal.SIGKILL)
        told, _ = played(small(), tmp_path, helpers)
    assert told.ran == 0
    assert set(told.failed.values()) == {"the process that ran it ended with exit code -9"}


def test_nobody_stays_behind(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Helpers(2, tmp_path, "cpu", None) as helpers:  # noqa: PT012
        processes = helpers._processes
        time.sleep(0.1)
        raise KeyboardInterrupt
    assert all(process.poll() is not None for process in processes)


def test_how_many() -> None:
    assert [jobs_for("cuda", cores) for cores in (2, 8, 16, 64)] == [1, 2, 4, 4]
    assert jobs_for("cpu", 64) == 1
