"""Clocks that jump, fleets that fall silent, folders in use, and fleets ten times as large."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import fedloom
from fedloom.cli.options import checkpoints_of
from fedloom.errors import BadExperiment, RunStopped
from fedloom.runs.build import prepare
from fedloom.runs.checkpoint import store
from fedloom.runs.checkpoint.saver import Checkpoints
from fedloom.runs.experiment import Experiment
from fedloom.runs.lock import locked
from fedloom.runs.play import resume, run


def small(**changes: Any) -> Experiment:
    """Few clients with a small network."""
    return Experiment(
        **{"model": "linear", "training": {"epochs": 1}, "clients": 4, "per_round": 2, "rounds": 6, **changes}
    )


@pytest.fixture
def saves(monkeypatch) -> list[int]:
    """The rounds that are saved."""
    seen: list[int] = []
    true = store.save

    def save(folder: Path, number: int, *rest: Any) -> Path:
        seen.append(number)
        return true(folder, number, *rest)

    monkeypatch.setattr(store, "save", save)
    return seen


# ---- when


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_jumps_changes_nothing(hours, saves, tmp_path, monkeypatch):
    now = time.time()

    def jumping() -> float:
        nonlocal now
        now += hours * 3600
        return now

    monkeypatch.setattr(time, "time", jumping)
    seldom = run(small(), out=tmp_path / "seldom", checkpoints=Checkpoints(seconds=600))
    assert saves == [6]
    saves.clear()
    often = run(small(), out=tmp_path / "often", checkpoints=Checkpoints(rounds=1, seconds=None))
    assert saves == [1, 2, 3, 4, 5, 6]
    assert [row["loss"] for row in seldom.rounds] == [row["loss"] for row in often.rounds]


def test_by_rounds_and_at_the_end(saves, tmp_path):
    run(small(rounds=7), out=tmp_path / "run", checkpoints=Checkpoints(rounds=3, seconds=None))
    assert saves == [3, 6, 7]
    assert len(store.list_all(tmp_path / "run" / "checkpoint")) == 2


def test_by_seconds(saves, tmp_path):
    def slowly(row: dict[str, Any]) -> None:
        time.sleep(0.06)

    run(small(rounds=8), out=tmp_path / "run", checkpoints=Checkpoints(seconds=0.1), watch=slowly)
    assert 2 <= len(saves) <= 5
    assert saves[-1] == 8


def test_without_a_folder_nothing_is_saved(saves):
    run(small(rounds=1), checkpoints=Checkpoints(rounds=1))
    assert not saves


@pytest.mark.parametrize(
    ("text", "rounds", "seconds"),
    [
        ("30s", None, 30),
        ("5m", None, 300),
        ("1.5h", None, 5400),
        ("10", 10, None),
        ("10, 5m", 10, 300),
        ("end", None, None),
    ],
)
def test_when_is_read(text, rounds, seconds):
    assert checkpoints_of(text) == Checkpoints(rounds, seconds)


@pytest.mark.parametrize("text", ["", "m", "5 years", "-3", "0", "10,", "1.5"])
def test_when_is_refused(text):
    with pytest.raises(BadExperiment, match="checkpoint"):
        checkpoints_of(text)


# ---- nobody answers


def test_a_silent_fleet_stops_the_run_and_loses_nothing(tmp_path):
    lost = small(rounds=50, fleet="equal", channel={"name": "bernoulli", "settings": {"up": 1.0}})
    start = prepare(lost)
    with pytest.raises(RunStopped, match=r"nobody answered in 10 rounds in a row, up to round 10; .* world\.patience"):
        run(lost, out=tmp_path / "run")
    found = store.read(store.list_all(tmp_path / "run" / "checkpoint")[0])
    assert found.facts["round"] == 10
    assert torch.equal(store.tensors(found, "server.safetensors")["model"], start.inputs.model)
    with pytest.raises(RunStopped, match="up to round 20"):
        resume(tmp_path / "run")


def test_patience_is_a_setting_and_counts_across_a_stop(tmp_path):
    def lost(**world: Any) -> Experiment:
        return small(rounds=8, fleet="equal", channel={"name": "bernoulli", "settings": {"up": 1.0}}, world=world)

    def stop(row: dict[str, Any]) -> None:
        if row["round"] == 2:
            raise KeyboardInterrupt

    assert len(run(lost(patience=None)).rounds) == 8
    with pytest.raises(RunStopped, match="up to round 3"):
        run(lost(patience=3))
    with pytest.raises(KeyboardInterrupt):
        run(lost(patience=3), out=tmp_path / "run", watch=stop)
    with pytest.raises(RunStopped, match="up to round 3"):
        resume(tmp_path / "run")


def test_one_answer_is_enough():
    unsure = small(
        rounds=30, fleet="equal", channel={"name": "bernoulli", "settings": {"up": 0.5}}, world={"patience": 6}
    )
    rows = run(unsure).rounds
    assert len(rows) == 30
    assert any(row["arrived"] == 0 for row in rows)


# ---- one run a folder


def test_a_folder_in_use_is_refused_and_says_by_whom(tmp_path):
    run(small(rounds=1), out=tmp_path / "run")
    said = rf"folder '{tmp_path / 'run'}' is in use by another run \(process {os.getpid()}\)"
    with locked(tmp_path / "run" / "checkpoint" / "lock", "it"), pytest.raises(BadExperiment, match=said):
        resume(tmp_path / "run", rounds=2)
    resume(tmp_path / "run", rounds=2)


def test_the_lock_of_a_dead_process_does_not_block(tmp_path):
    run(small(rounds=1), out=tmp_path / "run")
    (tmp_path / "run" / "checkpoint" / "lock").write_text("1\n")  # a process that is alive, and does not hold it
    assert len(resume(tmp_path / "run", rounds=2).rounds) == 2


# ---- room

FLEET = """
import resource, sys
import numpy as np
from fedloom import Dataset, Experiment, run

x = np.arange(400_000, dtype=np.float32).reshape(100_000, 4) / 400_000
y = np.arange(100_000) % 2
data = Dataset("tiny", x, y, x[:100], y[:100], None, None, 2, 0)
experiment = Experiment(partition="iid", model="linear", clients=int(sys.argv[1]), per_round=10, rounds=3)
run(experiment, data=data, out=sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_a_fleet_of_100_000_takes_the_memory_of_10_000(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(fedloom.__file__).parent.parent)}

    def memory(clients: int) -> int:
        words = [sys.executable, "-c", textwrap.dedent(FLEET), str(clients), str(tmp_path / str(clients))]
        return int(subprocess.check_output(words, env=environment, timeout=300))

    assert memory(100_000) < 1.1 * memory(10_000)
