"""What did a trial take? Seconds by stretch and phase, bytes by payload and socket, memory by node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.parquet as pq

from fedloom.layout import load
from fedloom.runs.experiment import Experiment
from fedloom.runs.inputs import Inputs
from fedloom.runs.parquet import table_rows
from fedloom.runs.result import Result

if TYPE_CHECKING:
    from fedloom.flower.deploy.trial import Trial


class Node(NamedTuple):
    """What one node took."""

    name: str
    clients: str
    payload_up: int  # bytes of the codec's messages, as the ledger has them
    payload_down: int
    transport_up: int  # bytes that Flower adds, as the ledger has them: reckoned
    transport_down: int
    socket_up: int  # bytes that went over its connections to the link while the run was on
    socket_down: int
    memory: int  # bytes: the most that its processes held at a time


class Measured(NamedTuple):
    """A run on real processes."""

    result: Result
    times: dict[str, float]  # seconds of each stretch of the trial
    phases: dict[str, float]  # seconds of each phase: mean over clients and rounds
    nodes: list[Node]

    def summary(self) -> dict[str, Any]:
        """One object for machines."""
        nodes = [node._asdict() for node in self.nodes]
        return {**self.result.summary(), "times": self.times, "phases": self.phases, "nodes": nodes}


def measured(experiment: Experiment, inputs: Inputs, out: Path, trial: Trial, seconds: float) -> Measured:
    """Read what a run has left."""
    from safetensors.torch import load_file

    rows = table_rows(out / "rounds.parquet")
    columns = pq.ParquetFile(out / "clients.parquet").read().to_pydict()
    layout = inputs.setting.layout
    weights = layout.join(load_file(out / "model.safetensors"), 0)
    result = Result(experiment, load(inputs.network, layout, weights).cpu().eval(), rows, seconds, out, {}, {})
    rounds = sum(row["wall_seconds"] for row in rows)
    times = {**trial.times, "rounds": rounds, "around them": max(0.0, trial.times["run"] - rounds)}
    del times["run"]
    phases = {
        name.removeprefix("seconds_").replace("_", " "): sum(values) / max(1, len(values))
        for name, values in columns.items()
        if name.startswith("seconds_")
    }
    return Measured(result, times, phases, [_node(trial, number, columns) for number in range(len(trial.numbers))])


def _node(trial: Trial, number: int, columns: dict[str, list[Any]]) -> Node:
    name, carried = f"node-{number}", trial.carried[number]
    own = [client % len(trial.numbers) == number for client in columns["client"]]
    up, down, other_up, other_down = (
        sum(int(size) for size, mine in zip(columns.get(column, ()), own) if mine)
        for column in ("bytes_up", "bytes_down", "transport_up", "transport_down")
    )
    memory, clients = trial.processes.peaks.get(name, 0), trial.deployment.clients[number]
    return Node(name, clients, up, down, other_up, other_down, carried.up, carried.down, memory)
