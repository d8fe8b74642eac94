"""Clients are asked one after another, in the order of `select`, and their tasks are made."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.flight import ARRIVED, UNAVAILABLE, UNREACHED, Asked, Flight, Journey, Wave
from fedloom.core.part import NobodyLeft
from fedloom.core.types import Cohort, Reply, Setting, Task
from fedloom.method import Memory, Method
from fedloom.round import task_for

if TYPE_CHECKING:
    from fedloom.core.pace import Wish
    from fedloom.engine.protocol import Timed


class Chosen(NamedTuple):
    """A client that is asked next, and where its task is."""

    client: int
    wave: Wave
    row: int
    reply: Reply | None  # of the wave, where clients are trained when they are asked


class Asking:
    """Clients that are asked at one version.

    Tasks are made for several clients at a time, where nothing depends on which of them are asked in the end, and when.
    """

    def __init__(
        self, method: Method, memory: Memory, setting: Setting, world: Timed, flight: Flight, chance: Chance
    ) -> None:
        self.method, self.memory, self.setting, self.world = method, dict(memory), setting, world
        self.flight, self.chance = flight, chance
        self._ahead = method.pace.one_by_one and method.masks_known and world.ahead
        self._order: deque[int] | None = None  # free clients without a task
        self._ready: deque[Chosen] = deque()  # clients with a task, to be asked in this order

    def fill(self) -> None:
        """Ask as many clients as the pace wishes and are free."""
        able = np.ones_like(self.flight.free)
        while (wish := self.method.pace.wish(self.memory["pace"], self.flight, able)).clients > 0:
            if not self._ask(wish):
                if wish.among is None:
                    break
                able &= ~wish.among

    def _ask(self, wish: Wish) -> bool:
        """Ask at most as many as are wished; whether anybody was."""
        if self._ahead and wish.among is None:
            chosen = self._prepared(wish.clients)
        else:
            some = 1 if self.method.pace.one_by_one and not self.world.foresees else wish.clients
            chosen = self._waved(sorted(self._next(some, wish)))
        flight, timeout = self.flight, self.method.pace.timeout
        asked = []
        for client, wave, row, reply in sorted(chosen, key=lambda one: one.client):
            task = Asked(flight.next_serial, client, wave, row, flight.now)
            task.end = end_of(task, timeout)
            if reply is not None and task.received:
                task.trained, task.place = reply, row
            flight.add(task, timeout)
            asked.append(task)
            if task.foreseen == UNAVAILABLE:
                flight.end(task, UNAVAILABLE)
        self.world.begin(asked)
        return bool(asked)

    def _prepared(self, count: int) -> list[Chosen]:
        """The next clients in order, with their tasks."""
        if self._order is None:  # nobody becomes free before the next step
            self._order = deque(self._next(int(self.flight.free.sum()), None))
        while len(self._ready) < count and self._order:
            some = min(len(self._order), max(self.method.pace.goal, count - len(self._ready)))
            self._ready.extend(self._waved([self._order.popleft() for _ in range(some)]))
        return [self._ready.popleft() for _ in range(min(count, len(self._ready)))]

    def _next(self, count: int, wish: Wish | None) -> list[int]:
        """The free clients to ask next, at most `count`, the first to be asked first."""
        free = self.flight.free if wish is None or wish.among is None else self.flight.free & wish.among
        free = self.world.reachable(free)
        count = min(count, int(free.sum()))
        if count == 0:
            return []
        try:
            ids, self.memory["select"] = self.method.select.next(
                self.memory["select"], self.setting, self.chance, torch.from_numpy(free), count
            )
        except NobodyLeft:
            if self.flight.tasks:  # what is in flight may still count
                return []
            raise
        found: list[int] = ids.tolist()
        return found

    def _waved(self, ids: list[int]) -> list[Chosen]:
        """Make the tasks of these clients, and foresee what they take."""
        if not ids:
            return []
        clients, version, now = torch.tensor(ids), self.flight.version, self.flight.now
        cohort = Cohort(clients, torch.ones_like(clients, dtype=torch.bool))
        task, self.memory = task_for(self.method, self.memory, version.model, self.setting, cohort, self.chance)
        seen, reply = self.world.foresee(clients, task, self.chance, now), None
        if self.world.foresees and not self.method.masks_known:  # what comes back, and when, follows from training
            reply = self._trained(clients, task, seen)
            seen = self.world.foresee(clients, task, self.chance, now, reply)
        wave = Wave(version, task, seen.table(), seen.end.tolist(), seen.fate.tolist(), seen.pieces)
        return [Chosen(client, wave, row, reply) for row, client in enumerate(ids)]

    def _trained(self, clients: Tensor, task: Task, seen: Journey) -> Reply:
        """The replies of all who get their task; the rows of the others hold the model."""
        got = [row for row, fate in enumerate(seen.fate.tolist()) if fate not in UNREACHED]
        if not got:
            return self.world.unanswered(clients, task)
        at = torch.tensor(got)
        here = at.to(task.model.device)
        reply = self.world.train_asked(clients[at], task.rows(here), self.chance)
        if len(got) == len(clients):
            return reply
        return reply.scatter(here, clients.to(task.model.device), task.model)


def end_of(task: Asked, timeout: float | None) -> float:
    """The second at which a task ends; with a timeout, a loss is noticed then and not before."""
    end = task.asked + task.wave.ends[task.row]
    lost = task.foreseen not in (ARRIVED, UNAVAILABLE)
    return max(end, task.asked + timeout) if lost and timeout is not None else end
