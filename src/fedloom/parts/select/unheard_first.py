"""Select: clients that never answered come first, then all clients with equal probability."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.types import Cohort, Reply, Setting, State
from fedloom.parts.select.counted import Counted


@dataclass(frozen=True)
class UnheardFirst(Counted):
    """`count` clients; those that never answered are asked before the others. Once all did, it is `Uniform`."""

    count: int = 10

    def init(self, setting: Setting, model: Tensor) -> State:
        """No client has answered."""
        return {"heard": torch.zeros(setting.fleet.size, dtype=torch.bool, device=model.device)}

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """Take clients in the order of `Uniform`, but those that never answered before the others."""
        keys = chance.key("select", torch.arange(setting.fleet.size, device=chance.device))
        order = keys.argsort()
        order = order[memory["heard"][order].byte().argsort(stable=True)]
        ids = order[: self.count].sort().values
        return Cohort(ids, torch.ones_like(ids, dtype=torch.bool)), memory

    def next(self, memory: State, setting: Setting, chance: Chance, free: Tensor, count: int) -> tuple[Tensor, State]:
        """Of the free clients those that never answered first, both in the order of `Uniform`."""
        order = chance.on_host().order("select", len(free), free.cpu())
        return order[memory["heard"].cpu()[order].byte().argsort(stable=True)][:count], memory

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """Mark the clients whose replies arrived."""
        heard = memory["heard"]
        return {"heard": heard.index_put((reply.ids,), heard[reply.ids] | reply.arrived)}
