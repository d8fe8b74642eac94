"""Three rounds through a real SuperLink and real SuperNodes equal the simulator; every reply is real bytes."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from fedloom.methods import METHODS
from fedloom.runs.checkpoint.store import list_all
from fedloom.runs.experiment import Experiment
from fedloom.runs.parquet import table_rows
from flower_processes import Trial
from flower_world import simulated

NODES = ["0-2", "3-5"]
SECONDS = 600.0  # that a run may take; most of it is room for a busy machine
RANKS = ("hetlora", "flexlora")  # refuse a network without adapters
QUICK = ("fedavg", "feddd", "fedspu")
# goals with a method each, on data that every node finds in the package
GOALS = {
    "numbers": ("scaffold", {"data": "diabetes", "goal": {"name": "numbers", "settings": {"loss": "huber"}}}),
    "next-token": (
        "fedspu", {"data": {"name": "shakespeare", "settings": {"roles": 6}}, "goal": "next-token", "partition": "own"},
    ),
    "pixels": (
        "feddd", {"data": {"name": "shapes", "settings": {"clients": 6, "examples": 20}}, "goal": "pixels",
                  "partition": "own", "augment": ["flip", "crop"]},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """Nodes that start a new Python for every message, as Flower's own do."""
    yield from _trial(tmp_path_factory, warm=False)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """Nodes that have loaded everything, as in `fedloom deploy`; they answer sooner."""
    yield from _trial(tmp_path_factory, warm=True)


def _trial(folders: pytest.TempPathFactory, warm: bool) -> Iterator[Trial]:
    trial = Trial(folders.mktemp("trial"), NODES, warm=warm)
    try:
        yield trial
    finally:
        trial.stop()


def experiment_of(method: str, **more: Any) -> Experiment:
    """Three rounds of six clients; clients' own models, if they have some, are tried at the end.

    The simulator takes one client at a time, as nodes do: products of a whole cohort round differently, and after three
    rounds of HeteroFL that had grown to 1.4e-5.
    """
    own = {"split": (0.7, 0.0, 0.3), "evaluate_every": 3} if method == "fedspu" else {}
    given = {"clients": 6, "rounds": 3, "fleet": "table4", "training": {"epochs": 1}, "chunk": 1, **own, **more}
    return Experiment(method=method, **given)


def assert_equal_to_the_simulator(trial: Trial, method: str, **more: Any) -> Path:
    """Run a method on nodes and in the simulator; the run folder."""
    experiment, out = experiment_of(method, **more), trial.folder / "runs" / "-".join((method, *more))
    text = trial.run(experiment, SECONDS, out=str(out), deadline=SECONDS / 2, patience=SECONDS / 2)
    assert (out / "model.safetensors").exists(), text
    found, wanted = load_file(out / "model.safetensors"), simulated(experiment)
    for name, value in wanted.model.state_dict().items():
        if name in found:
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5)
    rows = table_rows(out / "rounds.parquet")
    assert [row["arrived"] for row in rows] == [row["arrived"] for row in wanted.rounds]
    for one, other in zip(rows, wanted.rounds, strict=True):
        for name in ("score", "personal_score"):
            assert (one[name] is None) == (other[name] is None)
            if one[name] is not None:
                assert one[name] == pytest.approx(other[name], abs=1e-4)
    return out


@pytest.mark.parametrize("method", QUICK)
def test_real_processes_equal_the_simulator(trial: Trial, method: str) -> None:
    out = assert_equal_to_the_simulator(trial, method)
    clients = pq.read_table(out / "clients.parquet").to_pylist()
    for row in clients:
        assert row["bytes_up"] == row["bytes_up_values"] + row["bytes_up_indices"] + row["bytes_up_overhead"]
        assert row["seconds_compute"] > 0
        assert row["rss_bytes"] > 2**20
    if method == "fedspu":
        assert list(trial.folder.glob("state*/*/*/*.safetensors"))  # every node keeps its own clients' models


@pytest.mark.parametrize("goal", GOALS)
def test_real_processes_train_for_every_goal(trial: Trial, goal: str) -> None:
    method, more = GOALS[goal]
    assert_equal_to_the_simulator(trial, method, **more, rounds=2)


@pytest.mark.slow
def test_a_killed_server_goes_on_to_the_same_model(trial: Trial) -> None:
    """It is killed while nodes train the second round; they repeat that round."""
    experiment, out = experiment_of("fedspu"), trial.folder / "runs" / "killed"
    terms = {"out": str(out), "deadline": SECONDS / 2, "patience": SECONDS / 2}
    trial.begin(experiment, **terms)
    ends = time.monotonic() + SECONDS
    while not list_all(out / "checkpoint"):  # the first round is saved
        assert time.monotonic() < ends, trial.log("run")
        time.sleep(0.1)
    time.sleep(2.0)
    server = trial.running("flwr-serverapp")
    assert len(server) == 1
    os.kill(server[0], signal.SIGKILL)
    trial.processes.kill("run")  # which only shows the log
    assert not (out / "model.safetensors").exists()  # it did not get that far
    text = trial.run(experiment, SECONDS, resume=True, **terms)
    assert (out / "model.safetensors").exists(), text
    found = load_file(out / "model.safetensors")
    for name, value in simulated(experiment).model.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5)
    assert len(json.loads((out / "experiment.json").read_text())["resumed"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [name for name, make in METHODS.items() if name not in (*QUICK, *RANKS) and make().pace.barrier]
)
def test_every_method_does(ready: Trial, method: str) -> None:
    assert_equal_to_the_simulator(ready, method)
