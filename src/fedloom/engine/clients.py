"""The clients that train in this process: their examples, held-out examples, and their states between rounds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.rows import expanded
from fedloom.core.types import Examples, Reply, Setting, State, Task, listed as on_device
from fedloom.engine.client import Chunk, Learnt, choose_part, initial_state, judge, keep_network, reply_of
from fedloom.engine.gradient.protocol import Gradient
from fedloom.engine.storage.backing import Place
from fedloom.engine.storage.client_states import ClientStates
from fedloom.engine.storage.shards import Shards
from fedloom.method import Method

ClientExamples = tuple[Examples, Shards]  # examples, and which of them are whose


class Clients:
    """All that the clients of one process have, behind what a round reads and writes."""

    def __init__(
        self,
        method: Method,
        setting: Setting,
        data: Examples,
        shards: Shards,
        held_out: ClientExamples | None = None,
        own_test: ClientExamples | None = None,
        states: Place = "device",
        strata: Shards | None = None,
    ) -> None:
        """`held_out`: examples that clients try their models on; `own_test`: those for their personal score.

        `strata`: in place of row numbers, the stratum of each example in `shards`.
        """
        self.strata = strata
        self.method, self.setting, self.data, self.shards = method, setting, data, shards
        self.held_out, self.own_test = held_out, own_test
        self.states = ClientStates(setting.fleet.size, data.x.device, states, waits=not method.pace.barrier)
        self._constants: State | None = None  # of the local rule
        self._newborn: State | None = None  # the state of the client met last; a template for all met before

    def met(self, listed: Sequence[int]) -> bool:
        """Whether every one of these clients has a state, if clients have one at all."""
        return self._newborn == {} or self.states.met(list(listed))

    def gather(
        self, ids: Tensor, listed: list[int], places: list[int], task: Task, chance: Chance, width: tuple[int, ...]
    ) -> Chunk:
        """Read what the training of the clients at `places` of a cohort needs, and let them choose what to train."""
        if places != list(range(len(ids))):
            at = on_device(places, ids.device)
            ids, task = ids[at], task.rows(at)
        task = self.equip(task, len(ids))
        traits = self.method.local.traits
        if traits.keeps_network:
            task = keep_network(self.setting, task)
        sizes = [self.shards.sizes[i] for i in listed]
        if self._newborn is None or not self.met(listed):
            self._newborn = initial_state(self.method, self.setting, task.model)
        state = self.states.get(listed, self._newborn)
        data, rows = self.shards.examples_of(self.data, ids, listed)
        batches = self.method.work.plan(ids, rows, sizes, chance)
        if traits.chooses:
            strata = None if self.strata is None else self.strata.rows(ids, rows.shape[1])
            task, state = choose_part(self.method, self.setting, ids, task, state, data, rows, strata, chance)
        return Chunk(ids, listed, data, task, task.model.expand(len(ids), -1), state, batches, width)

    def equip(self, task: Task, count: int) -> Task:
        """The task with the local rule's constants as rows that all of `count` clients share."""
        if self._constants is None:
            self._constants = self.method.local.constants(self.setting)
        if not self._constants:
            return task
        return task._replace(extras={**task.extras, **expanded(self._constants, count)})

    def finish(self, chunk: Chunk, learnt: Learnt, state: State, gradient: Gradient, chance: Chance) -> Reply:
        """Keep the new states, and make the reply."""
        columns: State = {}
        if self.method.local.traits.judges:
            assert self.held_out is not None
            data, shards = self.held_out
            data, rows = shards.examples_of(data, chunk.ids, chunk.listed)
            sizes = on_device([shards.sizes[i] for i in chunk.listed], chunk.ids.device)
            columns, state = judge(self.method, self.setting, gradient, chunk, learnt, state, (data, rows, sizes))
        if self.method.aggregate.reads_weight:
            columns["weight"] = self._weights(chunk)
        self.states.put(chunk.listed, state)
        return reply_of(self.method, self.setting, chunk, learnt, state, chance, columns)

    def _weights(self, chunk: Chunk) -> Tensor:
        """The sum of the weights of each client's examples [C], by their targets."""
        sizes = on_device([self.shards.sizes[i] for i in chunk.listed], chunk.ids.device)
        weigh = self.setting.goal.weigh
        if weigh is None:
            return sizes.double()
        data, rows = self.shards.examples_of(self.data, chunk.ids, chunk.listed)
        weight = weigh(data.y[rows].flatten(0, 1)).double().view(rows.shape)
        real = torch.arange(rows.shape[1], device=rows.device) < sizes[:, None]
        return torch.where(real, weight, 0).sum(1)

    def settle(self, ids: list[int]) -> None:
        """Let the states that these clients have after training count from now on, if they were kept aside."""
        self.states.settle(ids)

    def save(self) -> State:
        """States of all clients that were met, and what the network counts by itself."""
        states = {f"states.{name}": value for name, value in self.states.save().items()}
        return states | {f"counts.{name}": value for name, value in self._counts().items()}

    def load(self, saved: State) -> None:
        """Put back what `save` gave; clients that are not in it have not been met."""
        self.states.load({n.removeprefix("states."): v for n, v in saved.items() if n.startswith("states.")})
        self._newborn = None
        for name, value in self._counts().items():
            if f"counts.{name}" in saved:
                value.copy_(saved[f"counts.{name}"])

    def _counts(self) -> State:
        """Whole numbers that a network counts by itself, such as the batches that batch norm has seen."""
        return {name: v for name, v in self.setting.module.state_dict().items() if not v.is_floating_point()}
