"""Who takes part? Those never heard of come first, after that everyone is equally likely."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Select
from fedloom.core.types import Cohort, Reply, Setting, State
from fedloom.parts.select.uniform import Uniform


@dataclass(frozen=True)
class UnheardFirst(Select):
    """`count` clients; whoever never answered is asked before the others. Once all did, it is `Uniform`."""

    count: int = 10

    def __post_init__(self) -> None:
        Uniform(self.count)  # refuses what cannot be

    def init(self, setting: Setting, model: Tensor) -> State:
        """Nobody was heard of."""
        return {"heard": torch.zeros(setting.fleet.size, dtype=torch.bool, device=model.device)}

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """In the order that `Uniform` would take them, but strangers before the others."""
        keys = chance.key("select", torch.arange(setting.fleet.size, device=chance.device))
        order = keys.argsort()
        order = order[memory["heard"][order].byte().argsort(stable=True)]
        ids = order[: self.count].sort().values
        return Cohort(ids, torch.ones_like(ids, dtype=torch.bool)), memory

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """Those who arrived."""
        heard = memory["heard"]
        return {"heard": heard.index_put((reply.ids,), heard[reply.ids] | reply.arrived)}
