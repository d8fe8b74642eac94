"""Allocate: shares that fall to the rank that each client says is left of its adapters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.adapters import adapters_of
from fedloom.core.part import Allocate
from fedloom.core.types import Reply, Setting, State
from fedloom.parts.allocate.tiers import Tiers


@dataclass(frozen=True)
class LearntRanks(Allocate):
    """Clients begin with the shares of tiers; a rank that a reply reports replaces the client's share."""

    begin: Tiers = Tiers()

    def init(self, setting: Setting, model: Tensor) -> State:
        """Every client's share [N], rounded up to whole components."""
        rank = adapters_of(setting, type(self).__name__)[0].rank
        chance = Chance(0, 0, model.device)
        shares, _ = self.begin({}, setting, torch.arange(setting.fleet.size, device=model.device), chance)
        return {"share": (shares * rank - 1e-6).ceil().clamp(min=1) / rank}

    def __call__(self, memory: State, setting: Setting, ids: Tensor, chance: Chance) -> tuple[Tensor, State]:
        """Look up the share of each client [C]."""
        return memory["share"][ids], memory

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """Remember the ranks that arrived."""
        if "rank" not in reply.extras:
            return memory
        own, now = memory["share"], reply.extras["rank"] / setting.neurons.pairs[0].rank
        now = torch.where(reply.arrived, now.to(own.dtype), own[reply.ids])
        return {"share": own.index_copy(0, reply.ids, torch.minimum(now, own[reply.ids]))}

    def record(self, memory: State) -> State:
        """The mean share of the fleet."""
        return {"rank": memory["share"].mean()}
