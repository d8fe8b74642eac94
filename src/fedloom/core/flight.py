"""Tasks between asking and taking: who was asked, from which version of the model, and what has come of it.

A version is the number of steps made: version 0 is the initial model, step r makes version r from version r - 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.core.costs import MEASURED, Bytes
from fedloom.core.occupancy import Occupancy
from fedloom.core.rows import cat_rows
from fedloom.core.types import Reply, State, Task

if TYPE_CHECKING:
    from fedloom.core.pace import Pace

FATES = (
    "arrived", "silent", "unavailable", "download lost", "upload lost", "late", "surplus",
    "too old", "recalled", "given up", "in flight", "spare",
)  # fmt: skip
ARRIVED, SILENT, UNAVAILABLE, DOWNLOAD_LOST, UPLOAD_LOST, LATE, SURPLUS = range(7)
TOO_OLD, RECALLED, GIVEN_UP, IN_FLIGHT, SPARE = range(7, len(FATES))
UNREACHED = (UNAVAILABLE, DOWNLOAD_LOST)  # fates of clients that never get their task


class Journey(NamedTuple):
    """What a task takes of each client, and what becomes of it, deadlines aside [C each]."""

    prices: tuple[Bytes, Bytes]  # of tasks and replies, whether they were sent or not
    columns: State  # those named in `MEASURED`
    fate: Tensor  # as the place in `FATES`
    end: Tensor  # seconds from the task to the reply, or to where it ends
    present: Tensor
    pieces: Tensor | None = None  # [C, count] which pieces of the reply arrive

    def table(self) -> Tensor:
        """The columns and the prices, a row for each client, in double precision."""
        prices = [part for size in self.prices for part in size.per_client(len(self.fate))]
        every = [*(self.columns[name] for name in MEASURED), *prices]
        return torch.stack([value.to(self.end) for value in every], 1)


class Version(NamedTuple):
    """The model after some steps; it lives as long as a task refers to it."""

    number: int
    model: Tensor  # [P]
    moves: int = 0  # steps that took a reply; the others, silent ones, make nothing stale
    counts: Tensor | None = None  # [P] of these, those in which a counted reply held the number; None: not counted


@dataclass(eq=False)
class Wave:
    """Clients whose tasks were made together from one version; not all of them need be asked."""

    version: Version
    task: Task  # [C] rows; `task.model` is the version's
    facts: Tensor  # [C, columns] what each task takes, as `Journey.table` has it
    ends: list[float]  # [C] seconds from the task to the reply, or to where it ends
    fates: list[int]  # [C] what becomes of the task if it is awaited
    pieces: Tensor | None = None  # [C, count] which pieces of the reply arrive


@dataclass(eq=False, slots=True)
class Asked:
    """One client, asked once. A client has one such task at a time."""

    serial: int  # in the order of asking; rises with the client among those asked at one instant
    client: int
    wave: Wave
    row: int  # of the client in the wave
    asked: float  # the second of asking
    end: float = inf  # the second at which the reply comes, or the task ends without one; inf: not known yet
    fate: int = IN_FLIGHT  # as its place in `FATES`; known when the task has ended
    ended: bool = False
    holds_slot: bool = True  # False: it ended, or the server no longer counts it among those in flight
    trained: Reply | None = None  # in which its reply is a row, as soon as the client was trained
    place: int = 0  # of that row

    @property
    def base(self) -> int:
        """The version that the client was sent."""
        return self.wave.version.number

    @property
    def foreseen(self) -> int:
        """Its fate if it is awaited."""
        return self.wave.fates[self.row]

    @property
    def received(self) -> bool:
        """Whether the task reaches the client, so that it trains."""
        return self.foreseen not in UNREACHED


class Flight:
    """All tasks that no step has closed yet, by serial: in flight, waiting, or ended without a reply that counts."""

    def __init__(self, fleet_size: int, version: Version, slots: int = 0) -> None:
        """`slots`: at most how many clients are in flight at a time."""
        self.version = version
        self.occupancy = Occupancy(min(slots, fleet_size))
        self.now = self.since = 0.0  # the second it is, and that of the last step
        self.next_serial = 0
        self.tasks: dict[int, Asked] = {}
        self.waiting: list[Asked] = []  # replies that no step has taken, in the order in which they came
        self.in_flight = 0  # tasks that hold a slot
        self.refilled = False  # whether anybody was asked since the last step
        self.free: NDArray[np.bool_] = np.ones(fleet_size, np.bool_)  # [N] clients without a task here
        self._events: list[tuple[float, int, int]] = []  # heap of second, kind and serial: a total order

    def staleness(self, task: Asked) -> int:
        """Steps with a reply since the task's client was sent the model."""
        return self.version.moves - task.wave.version.moves

    def advance(self, to: float) -> None:
        """Let time pass."""
        self.occupancy.pass_time(to - self.now, self.in_flight, len(self.waiting))
        self.now = to

    def add(self, task: Asked, timeout: float | None = None) -> None:
        """Add a client that is asked now; without a reply the server waits for it until the `timeout`."""
        self.tasks[task.serial] = task
        self.next_serial = task.serial + 1
        self.free[task.client] = False
        self.in_flight += 1
        self.refilled = True
        self.schedule(task, timeout)

    def take_up(self, tasks: Iterable[Asked], waiting: Iterable[int], timeout: float | None) -> None:
        """Take up tasks that were saved, of which those `waiting`, by serial, have come in this order."""
        for task in tasks:
            self.tasks[task.serial] = task
            self.free[task.client] = False
            self.in_flight += task.holds_slot
            if not task.ended:
                self.schedule(task, timeout)
        self.waiting = [self.tasks[serial] for serial in waiting]

    def schedule(self, task: Asked, timeout: float | None) -> None:
        """Note when a task will end, and when its slot is given to somebody else."""
        if task.end < inf:
            heappush(self._events, (task.end, 0, task.serial))
        if timeout is not None and task.holds_slot and task.asked + timeout < task.end:
            heappush(self._events, (task.asked + timeout, 1, task.serial))

    def next_event(self) -> float:
        """The second of the next event; inf: none comes."""
        while self._events and self._over(self._events[0]):
            heappop(self._events)
        return self._events[0][0] if self._events else inf

    def happen(self, pace: Pace) -> None:
        """End the tasks whose end has come, by serial, and give their slots away whose time is over."""
        while self._events and self._events[0][0] <= self.now:
            event = heappop(self._events)
            if self._over(event):
                continue
            task = self.tasks[event[2]]
            late = pace.timeout is not None and not pace.late and self.now > task.asked + pace.timeout
            if event[1] == 0:
                self.end(task, GIVEN_UP if late and task.foreseen == ARRIVED else task.foreseen)
            else:
                self.release(task)

    def _over(self, event: tuple[float, int, int]) -> bool:
        """Whether an event's task has ended by another."""
        return event[2] not in self.tasks or self.tasks[event[2]].ended

    def end(self, task: Asked, fate: int) -> None:
        """End a task now: its reply has come, or never will."""
        self.release(task)
        task.ended, task.fate = True, fate
        if fate == ARRIVED:
            self.waiting.append(task)

    def drop(self, task: Asked, fate: int) -> None:
        """Let a reply that waits not count."""
        self.waiting.remove(task)
        task.fate = fate

    def release(self, task: Asked) -> None:
        """Let somebody else be asked in its place; its client stays busy until the task ends."""
        self.in_flight -= task.holds_slot
        task.holds_slot = False

    def closing(self, taken: Sequence[Asked], recall: bool) -> list[Asked]:
        """The tasks that a step closes, by client: those it takes, those that ended without counting, or all."""
        if recall:
            for task in self.tasks.values():
                if not task.ended:
                    self.end(task, RECALLED if task.foreseen == ARRIVED else task.foreseen)
            for task in [task for task in self.waiting if task not in taken]:
                self.drop(task, SURPLUS)
        here = {task.serial for task in taken}
        closed = [t for t in self.tasks.values() if t.serial in here or (t.ended and t.fate != ARRIVED)]
        return sorted(closed, key=lambda task: task.client)

    def close(self, tasks: Iterable[Asked], version: Version) -> None:
        """Remove tasks that a step has closed, whose clients are free again; `version` is the step's."""
        for task in tasks:
            self.release(task)
            del self.tasks[task.serial]
            self.free[task.client] = True
        self.waiting = [task for task in self.waiting if task.serial in self.tasks]
        self.version, self.since, self.refilled = version, self.now, False

    def end_interval(self) -> dict[str, float]:
        """Columns of a step's row: how slots were used since the last step, and how many versions are kept."""
        return {**self.occupancy.end_interval(self.in_flight), "versions": float(self.versions())}

    def versions(self) -> int:
        """How many versions of the model are kept: this one, and those that tasks refer to."""
        return len({self.version.number, *(task.base for task in self.tasks.values())})


def by_wave(tasks: Sequence[Asked]) -> list[tuple[Wave, Tensor, Tensor]]:
    """The waves of some tasks, each with its rows of them and their places among the tasks."""
    found: dict[int, tuple[Wave, list[int], list[int]]] = {}
    for place, task in enumerate(tasks):
        _, rows, places = found.setdefault(id(task.wave), (task.wave, [], []))
        rows.append(task.row)
        places.append(place)
    return [(wave, torch.tensor(rows), torch.tensor(places)) for wave, rows, places in found.values()]


def task_of(tasks: Sequence[Asked], extras: bool = True) -> Task:
    """The tasks as they were sent, a row each; with what the local rule added, all must be of one version."""
    waves = by_wave(tasks)
    device = waves[0][0].task.model.device
    each = [(wave.task if extras else wave.task._replace(extras={})).rows(rows.to(device)) for wave, rows, _ in waves]
    if len(each) == 1:
        return each[0]
    return Task.cat(each).rows(torch.cat([places for _, _, places in waves]).argsort().to(device))


def facts_of(tasks: Sequence[Asked], device: torch.device) -> Tensor:
    """What the tasks take, a row each."""
    waves = by_wave(tasks)
    if not waves:
        return torch.zeros(0, len(MEASURED) + 2 * len(Bytes._fields), dtype=torch.float64, device=device)
    return cat_rows([wave.facts[rows.to(device)] for wave, rows, _ in waves], [places for _, _, places in waves])


def pieces_of(tasks: Sequence[Asked]) -> Tensor | None:
    """Which pieces of the tasks' replies arrive, a row each; None where replies travel whole."""
    waves = by_wave(tasks)
    found = [wave.pieces[rows] for wave, rows, _ in waves if wave.pieces is not None]
    return cat_rows(found, [places for _, _, places in waves]) if found else None
