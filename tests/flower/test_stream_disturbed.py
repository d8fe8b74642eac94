"""Two minutes of a stream on real nodes that are killed, stopped and asked to end at random."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("flwr")

from fedloom.core.flight import ARRIVED, IN_FLIGHT
from fedloom.flower.deploy.processes import marked_processes
from fedloom.flower.deploy.trial import started
from fedloom.flower.server.replay import replay
from fedloom.runs.experiment import Experiment
from fedloom.runs.parquet import table_rows
from flower_disturbed import Disturber

pytestmark = pytest.mark.slow

SECONDS, EVERY = 120.0, 5.0  # of disturbances, and between two of them
WITHIN = 1e-5  # of the simulator's model
NODES = 6


@pytest.mark.parametrize("method", ["fedbuff", "fedspu"])
def test_nodes_come_and_go(tmp_path: Any, method: str) -> None:
    """No task is lost from the tables, no reply counts twice, and the recorded order gives the model again."""
    pace = {"name": "buffered", "settings": {"buffer": 3, "in_flight": NODES}}
    experiment = Experiment(method=method, pace=pace, clients=2 * NODES, rounds=60, device="cpu", seed=3)
    run, states = tmp_path / "run", tmp_path / "states"
    with started(experiment, NODES, tmp_path / "work", states, lasting=True) as trial:
        disturber = Disturber(trial, [*range(NODES)], random.Random(3), EVERY)
        number = trial.control.start(trial.deployment.app, {"out": str(run), "deadline": 45.0})
        status = trial.wait(number, disturber.look)
        seconds = disturber.events[-1][0]
    assert not marked_processes(trial.processes.mark)
    assert status.outcome == "completed", status
    assert seconds > SECONDS
    events = Counter(how for _, how, _ in disturber.events)
    assert min(events[how] for how in ("kill", "stop", "end")) >= 2, events
    rows = table_rows(run / "rounds.parquet")
    assert [row["round"] for row in rows] == list(range(1, experiment.rounds + 1))
    columns = pq.ParquetFile(run / "clients.parquet").read().to_pydict()
    serials, fates = columns["serial"], Counter(columns["fate"])
    assert sorted(serials) == list(range(len(serials)))  # every task has one row
    counted = [serial for serial, fate in zip(serials, columns["fate"]) if fate == ARRIVED]
    assert len(counted) == sum(row["arrived"] for row in rows)
    assert fates[IN_FLIGHT] <= NODES
    assert sum(fates.values()) - fates[ARRIVED] - fates[IN_FLIGHT] > 0  # some were lost, and are known to be
    assert replay(run).difference <= WITHIN
