"""Engines on one machine: `Local` trains a cohort as matrices, `Loop` one client after another (the oracle)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.chance import Chance
from fedloom.client import Examples, Gradient, Learnt, beside, initial_state, judged, learn, narrowed, reply_of
from fedloom.engine.gradient import fastest_gradient
from fedloom.engine.plain import PlainGradient
from fedloom.engine.sliced import learn_sliced, widths
from fedloom.engine.stacked import StackedGradient
from fedloom.engine.states import ClientStates
from fedloom.errors import RunStopped
from fedloom.local.work import Batches
from fedloom.method import Method
from fedloom.types import Reply, Setting, State, Task

BUDGET = 2**30  # bytes a chunk of clients may take on a CPU; a constant, so that runs repeat bit for bit


class Shards:
    """Which examples are whose: one list after another."""

    def __init__(self, clients: Sequence[Tensor | NDArray[np.int64]], device: torch.device) -> None:
        self.sizes = [len(one) for one in clients]
        whole = np.concatenate([np.empty(0, np.int64), *clients])  # arrays: a tensor for each would cost a large fleet
        self.examples = torch.from_numpy(whole).to(device)
        self._first = torch.tensor([0, *self.sizes], device=device).cumsum(0)

    def rows(self, ids: Tensor, widest: int) -> Tensor:
        """The examples of each client [C, widest]; short lists are padded with their own last example."""
        first, size = self._first[ids], self._first[ids + 1] - self._first[ids]
        inside = torch.arange(widest, device=ids.device).minimum(size[:, None] - 1)
        return self.examples[first[:, None] + inside]


class Local:
    """A cohort as matrices on one device, in chunks that fit a budget; clients stand in order of their steps."""

    def __init__(
        self,
        method: Method,
        setting: Setting,
        data: Examples,
        shards: Shards,
        chunk: int | None = None,
        gradient: Gradient | None = None,
        sliced: bool = True,
        held: tuple[Examples, Shards] | None = None,
    ) -> None:
        self.sliced, self.held = sliced, held  # what clients keep back to try their models on
        self.method, self.setting, self.data, self.shards = method, setting, data, shards
        self.gradient = gradient or fastest_gradient(setting, data)
        self.states = ClientStates(setting.fleet.size, data.x.device)
        self.chunk = chunk or self._fitting()

    def __call__(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """Train the cohort, chunk by chunk; replies stand in the order of `ids`."""
        listed = ids.tolist()
        steps = self.method.work.steps_of([self.shards.sizes[i] for i in listed])
        alike = self._cuts(task) or self._freezes(task)  # in how many neurons they keep
        width = widths(self.setting, task.keep) if alike else [()] * len(listed)
        order = sorted(range(len(listed)), key=lambda place: (width[place], -steps[place]))  # ties keep their order
        chunks = []
        for _, bucket in groupby(order, key=lambda place: width[place]):
            places = list(bucket)
            chunks += [places[a : a + self.chunk] for a in range(0, len(places), self.chunk)]
        replies = [self._play(ids, [listed[p] for p in places], places, task, chance) for places in chunks]
        whole = replies[0] if len(replies) == 1 else _join(replies)
        return whole if order == sorted(order) else _reorder(whole, order)

    def _play(self, ids: Tensor, listed: list[int], places: list[int], task: Task, chance: Chance) -> Reply:
        """One chunk: fetch states and examples, train, keep the states."""
        whole = places == list(range(len(ids)))
        at = torch.tensor(places, device=ids.device)
        ids = ids if whole else ids[at]
        task = task if whole else task.rows(at)
        if self.method.local.keeps:
            task = beside(self.setting, task)
        sizes = [self.shards.sizes[i] for i in listed]
        state = self.states.get(listed, initial_state(self.method, self.setting, task.model))
        rows = self.shards.rows(ids, max(sizes))
        batches = self.method.work.plan(ids, rows, sizes, chance)
        if self.method.local.looks is not None:
            task, state = narrowed(self.method, self.setting, ids, task, state, self.data, rows, chance)
        if self._cuts(task) and isinstance(self.gradient, StackedGradient):
            learnt, state = learn_sliced(self.method, self.setting, self.gradient, self.data, task, state, batches)
        else:
            params, gradient, held = task.model.expand(len(ids), -1), self.gradient, self._freezes(task)
            if held and isinstance(gradient, StackedGradient) and task.keep is not None and task.mask is not None:
                gradient = gradient.freezing(task.keep, task.mask)
            learnt, state = learn(self.method, gradient, self.data, task, params, state, batches, held)
        report: State = {}
        if self.method.local.judges:
            report, state = self._judge(ids, listed, task, learnt, state, batches)
        self.states.put(listed, state)
        return reply_of(self.method, self.setting, ids, task, learnt, state, batches, chance, report)

    def _judge(
        self, ids: Tensor, listed: list[int], task: Task, learnt: Learnt, state: State, batches: Batches
    ) -> tuple[State, State]:
        """Trained models tried on what their clients kept back."""
        assert self.held is not None
        data, shards = self.held
        sizes = [shards.sizes[i] for i in listed]
        held = shards.rows(ids, max(1, *sizes))
        count = torch.tensor(sizes, device=ids.device)
        return judged(self.method, self.setting, self.gradient, task, learnt, state, batches, data, held, count)

    def _cuts(self, task: Task) -> bool:
        """Are really smaller networks trained? Only where the rule leaves the rest out and the graph is ours to run."""
        stacked = isinstance(self.gradient, StackedGradient)
        return self.sliced and stacked and task.keep is not None and self.method.local.cuts

    def _freezes(self, task: Task) -> bool:
        """Does the whole network run of which only the sent neurons are trained? Then other gradients are left out."""
        stacked, rule = isinstance(self.gradient, StackedGradient), self.method.local
        return self.sliced and stacked and task.keep is not None and rule.whole and rule.trains(task) is task.mask

    def _fitting(self) -> int:
        """How many clients fit the budget: weights, gradients, moments and activations, generously counted."""
        numbers = 8 * self.setting.layout.total + 40 * self.data.x[0].numel() * max(1, self.method.work.batch)
        budget = BUDGET
        if self.data.x.device.type == "cuda":
            budget = torch.cuda.get_device_properties(self.data.x.device).total_memory // 2
        return max(1, budget // (4 * numbers))


class Loop(Local):
    """One client after another, in plain eager PyTorch; an error says whose it was."""

    def __init__(
        self,
        method: Method,
        setting: Setting,
        data: Examples,
        shards: Shards,
        held: tuple[Examples, Shards] | None = None,
    ) -> None:
        super().__init__(method, setting, data, shards, 1, PlainGradient(setting), held=held)

    def _play(self, ids: Tensor, listed: list[int], places: list[int], task: Task, chance: Chance) -> Reply:
        try:
            return super()._play(ids, listed, places, task, chance)
        except Exception as problem:
            raise RunStopped(f"client {listed[0]} failed in round {task.round}: {problem}") from problem


def _join(replies: list[Reply]) -> Reply:
    """Chunks one below the other."""

    def states(name: str) -> State:
        parts = [getattr(reply, name) for reply in replies]
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}

    masks = [reply.mask for reply in replies]
    if any(mask is not None for mask in masks):  # some send everything, others do not
        masks = [torch.ones_like(r.params, dtype=torch.bool) if r.mask is None else r.mask for r in replies]
    return Reply(
        ids=torch.cat([reply.ids for reply in replies]),
        params=torch.cat([reply.params for reply in replies]),
        mask=None if masks[0] is None else torch.cat([m for m in masks if m is not None]),
        extras=states("extras"),
        report=states("report"),
        arrived=torch.cat([reply.arrived for reply in replies]),
    )


def _reorder(reply: Reply, order: list[int]) -> Reply:
    """Undo the sorting by steps: row k of `reply` belongs at place `order[k]`."""
    back = torch.tensor(order, device=reply.ids.device).argsort()
    return Reply(
        ids=reply.ids[back],
        params=reply.params[back],
        mask=None if reply.mask is None else reply.mask[back],
        extras={name: value[back] for name, value in reply.extras.items()},
        report={name: value[back] for name, value in reply.report.items()},
        arrived=reply.arrived[back],
    )
