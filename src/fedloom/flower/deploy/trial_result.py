"""The result of a trial: seconds by stage and phase; bytes and memory by node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedloom.layout import load
from fedloom.reading.tables import read_parquet
from fedloom.reading.tensors import read_tensors
from fedloom.runs.experiment import Experiment
from fedloom.runs.inputs import Inputs
from fedloom.runs.parquet import table_rows
from fedloom.runs.result import Result

if TYPE_CHECKING:
    from fedloom.flower.deploy.trial import Trial


class NodeCosts(NamedTuple):
    """Bytes and memory of one node in a run."""

    name: str
    clients: str  # `0-4,7`
    payload_up: int  # bytes of messages, as in the run's tables
    payload_down: int
    transport_up: int  # bytes that Flower adds, as in the run's tables: reckoned
    transport_down: int
    socket_up: int  # bytes on its connections to the link during the run: counted
    socket_down: int
    memory: int  # most bytes that its processes held at a time


class TrialResult(NamedTuple):
    """A run on real processes and what it took."""

    result: Result
    times: dict[str, float]  # seconds of each stage of the trial
    phases: dict[str, float]  # mean seconds of each phase, over clients and rounds
    nodes: list[NodeCosts]

    def summary(self) -> dict[str, Any]:
        """Everything for `--json`."""
        nodes = [node._asdict() for node in self.nodes]
        return {**self.result.summary(), "times": self.times, "phases": self.phases, "nodes": nodes}


def read_result(experiment: Experiment, inputs: Inputs, out: Path, trial: Trial, seconds: float) -> TrialResult:
    """Read a trial's result from its run folder and its processes."""
    rows = table_rows(out / "rounds.parquet")
    columns = read_parquet(out / "clients.parquet").to_pydict()
    layout = inputs.setting.layout
    weights = layout.join(read_tensors(out / "model.safetensors"), 0)
    result = Result(
        experiment, load(inputs.network, layout, weights).cpu().eval(), rows, seconds, out, {}, {}, inputs.setting.goal
    )
    rounds = sum(row["wall_seconds"] for row in rows)
    tried, judged = (sum(row.get(name) or 0.0 for row in rows) for name in ("personal_seconds", "evaluation_seconds"))
    spent = {"rounds": rounds, "clients' own models": tried, "evaluation": judged - tried}
    times = {**trial.times, **spent, "around them": max(0.0, trial.times["run"] - sum(spent.values()))}
    del times["run"]
    phases = {
        name.removeprefix("seconds_").replace("_", " "): sum(values) / max(1, len(values))
        for name, values in columns.items()
        if name.startswith("seconds_")
    }
    return TrialResult(
        result, times, phases, [_node_costs(trial, number, columns) for number in range(len(trial.numbers))]
    )


def _node_costs(trial: Trial, number: int, columns: dict[str, list[Any]]) -> NodeCosts:
    """One node's costs; `columns` are those of `clients.parquet`."""
    name, traffic = f"node-{number}", trial.traffic[number]
    own = [client % len(trial.numbers) == number for client in columns["client"]]
    up, down, other_up, other_down = (
        sum(int(size) for size, mine in zip(columns.get(column, ()), own) if mine)
        for column in ("bytes_up", "bytes_down", "transport_up", "transport_down")
    )
    memory, clients = trial.processes.peaks.get(name, 0), trial.deployment.clients[number]
    return NodeCosts(name, clients, up, down, other_up, other_down, traffic.up, traffic.down, memory)
