"""Tasks between asking and taking: who was asked, from which version of the model, and what has come of it.

A version is the number of steps made: version 0 is the initial model, step r makes version r from version r - 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedloom.core.types import Task

FATES = (
    "arrived", "silent", "unavailable", "download lost", "upload lost", "late", "surplus",
    "too old", "recalled", "given up", "in flight", "spare",
)  # fmt: skip
ARRIVED, SILENT, UNAVAILABLE, DOWNLOAD_LOST, UPLOAD_LOST, LATE, SURPLUS = range(7)
TOO_OLD, RECALLED, GIVEN_UP, IN_FLIGHT, SPARE = range(7, len(FATES))


class Version(NamedTuple):
    """The model after some steps; it lives as long as a task refers to it."""

    number: int
    model: Tensor  # [P]
    moves: int = 0  # steps in which a reply counted; the others, silent ones, make nothing stale
    counts: Tensor | None = None  # [P] of these, those in which a counted reply held the number; None: not counted


@dataclass(eq=False)
class Wave:
    """Clients whose tasks were made together from one version; not all of them need be asked."""

    version: Version
    task: Task  # [C] rows; `task.model` is the version's
    facts: dict[str, Tensor] = field(default_factory=dict)  # [C] each: what the world knows of each row beforehand


@dataclass(eq=False, slots=True)
class Asked:
    """One client, asked once. A client has one such task at a time."""

    serial: int  # in the order of asking; rises with the client among those asked at one instant
    client: int
    wave: Wave
    row: int  # of the client in the wave
    asked: float  # the second of asking
    end: float = np.inf  # the second at which the reply comes, or a loss is noticed; inf: not known yet
    fate: int = IN_FLIGHT  # as its place in `FATES`; known when the task has ended
    ended: bool = False
    holds_slot: bool = True  # False: it ended, or the server no longer counts it among those in flight

    @property
    def base(self) -> int:
        """The version that the client was sent."""
        return self.wave.version.number


class Flight:
    """All tasks that no step has taken yet, by serial: in flight, waiting, or ended without a reply that counts."""

    def __init__(self, fleet_size: int, version: Version) -> None:
        self.version = version
        self.now = self.since = 0.0  # the second it is, and that of the last step
        self.next_serial = 0
        self.tasks: dict[int, Asked] = {}
        self.waiting: list[Asked] = []  # replies that no step has taken, in the order in which they came
        self.in_flight = 0  # tasks that hold a slot
        self.refilled = False  # whether anybody was asked since the last step
        self.free: NDArray[np.bool_] = np.ones(fleet_size, np.bool_)  # [N] clients without a task here

    def staleness(self, task: Asked) -> int:
        """Steps with a counted reply since the task's client was sent the model."""
        return self.version.moves - task.wave.version.moves

    def add(self, tasks: Iterable[Asked]) -> None:
        """Add clients that are asked now."""
        for task in tasks:
            self.tasks[task.serial] = task
            self.free[task.client] = False
            self.in_flight += 1
        self.refilled = True

    def end(self, task: Asked, fate: int) -> None:
        """End a task now: its reply has come, or never will."""
        self.release(task)
        task.ended, task.fate = True, fate
        if fate == ARRIVED:
            self.waiting.append(task)

    def release(self, task: Asked) -> None:
        """Let somebody else be asked in its place; its client stays busy until the task ends."""
        self.in_flight -= task.holds_slot
        task.holds_slot = False

    def close(self, tasks: Iterable[Asked]) -> None:
        """Remove tasks that a step has taken; their clients are free again."""
        for task in tasks:
            self.release(task)
            del self.tasks[task.serial]
            self.free[task.client] = True
        self.waiting = [task for task in self.waiting if task.serial in self.tasks]

    def versions(self) -> int:
        """How many versions of the model are kept: this one, and those that tasks refer to."""
        return len({self.version.number, *(task.base for task in self.tasks.values())})
