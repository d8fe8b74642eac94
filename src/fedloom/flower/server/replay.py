"""A run on real nodes, played again in the simulator in the order in which tasks and replies were recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.accel.precision import computing
from fedloom.chance import Chance
from fedloom.core.costs import MEASURED
from fedloom.core.flight import ARRIVED, IN_FLIGHT, Asked, Flight, Journey
from fedloom.core.pace import Pace, Wish
from fedloom.core.part import Select
from fedloom.core.types import Cohort, Reply, Setting, State, Task
from fedloom.errors import BadData, BadExperiment
from fedloom.flower.server.checks import with_checks
from fedloom.runs.build import Prepared, prepare
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import experiment_in, saved_model
from fedloom.runs.play import play
from fedloom.runs.result import Result
from fedloom.runs.threads import threads_for
from fedloom.runs.watch import Watch
from fedloom.world.simulated import Simulated
from fedloom.world.virtual_time import VirtualTime

COLUMNS = ("round", "client", "serial", "base", "fate")


class Recorded(NamedTuple):
    """A task of the recorded run."""

    serial: int
    client: int  # its place in the fleet
    base: int  # the version that it was sent
    step: int  # that closed it
    fate: int


Record = dict[int, list[Recorded]]  # by base, in the order of asking


class Replayed(NamedTuple):
    """What came of it."""

    result: Result
    difference: float  # the largest, between a number of the recorded model and the same number now


@dataclass(frozen=True, eq=False)
class AsAsked(Select):
    """The clients that were asked at each version."""

    tasks: Record

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """Recorded runs have no cohorts."""
        raise NotImplementedError("a recorded run asks one client after another")

    def next(self, memory: State, setting: Setting, chance: Chance, free: Tensor, count: int) -> tuple[Tensor, State]:
        """All of them."""
        return torch.tensor([task.client for task in self.tasks.get(chance.round - 1, [])], dtype=torch.int64), memory


@dataclass(frozen=True, eq=False)
class AsRecorded(Pace):
    """The steps that were made, one a virtual second."""

    tasks: Record

    def wish(self, memory: State, flight: Flight, able: NDArray[np.bool_]) -> Wish:
        """Everybody of a version at once: chance and model are the same whenever they were asked."""
        return Wish(0 if flight.refilled else len(self.tasks.get(flight.version.number, [])))

    def due(self, memory: State, flight: Flight, quiet: bool) -> list[Asked] | None:
        """After a second, by when all tasks that the step closed have ended."""
        return None if flight.now < self.alarm(memory, flight) else list(flight.waiting)

    def alarm(self, memory: State, flight: Flight) -> float:
        """The next whole second."""
        return flight.since + 1


class InRecordedTime(VirtualTime):
    """A world in which a task ends in the step that closed it, with its recorded fate."""

    def __init__(self, simulated: Simulated, record: Record) -> None:
        super().__init__(simulated)
        self._tasks = {(task.base, task.client): task for tasks in record.values() for task in tasks}

    def foresee(self, ids: Tensor, task: Task, chance: Chance, now: float, reply: Reply | None = None) -> Journey:
        """As recorded; what it cost is in the recorded run's folder."""
        seen = super().foresee(ids, task, chance, now, reply)
        mine = [self._tasks[chance.round - 1, client] for client in ids.tolist()]
        ends = [inf if one.fate == IN_FLIGHT else float(one.step - one.base) for one in mine]
        fate = torch.tensor([ARRIVED if one.fate == IN_FLIGHT else one.fate for one in mine])
        none = torch.zeros(len(mine), dtype=torch.float64)
        columns = dict.fromkeys(MEASURED, none)
        return seen._replace(columns=columns, fate=fate, end=torch.tensor(ends, dtype=torch.float64), pieces=None)


def replay(folder: Path, watch: Watch | None = None, tell: Callable[[str], None] = lambda note: None) -> Replayed:
    """Play the run in `folder` again, and compare the models."""
    experiment = experiment_in(folder)
    if (folder / "checkpoint" / "clients.json").exists():
        raise BadExperiment(f"the nodes of '{folder}' had data of their own, which cannot be replayed without them.")
    if experiment.fleet.name == "none":
        experiment = Experiment(**{**experiment.model_dump(), "fleet": "equal"})  # a simulated world has devices
    prepared = prepare(experiment)
    record = read_record(folder, prepared.inputs.clients)
    prepared = _recorded(experiment, prepared, record)
    with threads_for([prepared.inputs]), computing(experiment.precision):
        result = play(experiment, prepared, watch=watch, tell=tell)
    layout = prepared.inputs.setting.layout
    ours = layout.join({name: value.detach() for name, value in result.model.state_dict().items()}, 0)
    return Replayed(result, float((ours - saved_model(folder, layout)).abs().max()))


def _recorded(experiment: Experiment, prepared: Prepared, record: Record) -> Prepared:
    """The run with everything decided by the record that the network decided."""
    method = prepared.inputs.method
    if method.pace.barrier:
        raise BadExperiment(
            f"pace={type(method.pace).__name__} has a barrier, so the order of replies decides nothing: run the same "
            "experiment with `fedloom run`."
        )
    checked = with_checks(method, experiment.admit.name, lambda reply: None)
    checked = replace(checked, select=AsAsked(record), pace=AsRecorded(record))
    simulated = prepared.engine
    assert isinstance(simulated, Simulated)
    return prepared._replace(inputs=prepared.inputs._replace(method=checked), timed=InRecordedTime(simulated, record))


def read_record(folder: Path, clients: list[int]) -> Record:
    """The tasks of a run, from its `clients.parquet`; `clients` are the fleet's numbers in the partition."""
    file, places = folder / "clients.parquet", {number: place for place, number in enumerate(clients)}
    try:
        table = pq.read_table(file)
    except (OSError, ValueError) as problem:
        raise BadData(f"'{file}' cannot be read ({problem}); replay a run folder.") from problem
    if missing := [name for name in COLUMNS if name not in table.column_names]:
        raise BadData(f"'{file}' has no column {', '.join(missing)}: the run had a barrier between its rounds.")
    record: Record = {}
    for row in sorted(table.select(list(COLUMNS)).to_pylist(), key=lambda row: int(row["serial"])):
        if row["client"] not in places:
            raise BadData(f"'{file}' names client {row['client']}, who is not in the experiment's fleet.")
        task = Recorded(row["serial"], places[row["client"]], row["base"], row["round"], row["fate"])
        record.setdefault(task.base, []).append(task)
    return record
