"""Mask: a sparse model for all clients, whose mask is merged from those that clients made of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Mask
from fedloom.core.sparsity import Sparsity, places_of, prunable
from fedloom.core.types import Portion, Reply, Setting, State
from fedloom.parts.mask.sparse import shared


@dataclass(frozen=True)
class Merged(Mask):
    """The union of the clients' masks, cut to the largest weights where it is too dense."""

    sparsity: Sparsity = Sparsity(density=0.2)

    @property
    def learns(self) -> bool:
        """From the clients' masks."""
        return True

    def init(self, setting: Setting, model: Tensor) -> State:
        """The largest weights."""
        return {"mask": self.sparsity.largest(setting, model)}

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Return the mask, for everybody."""
        return shared(memory["mask"], self.sparsity, len(ids)), memory

    def settle(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Merge masks if it is the round for it."""
        assert reply.chance is not None
        mask, heard, new = memory["mask"], reply.arrived.any(), memory["mask"]
        if self.sparsity.adjusts(reply.chance.round) and reply.mask is not None:
            union = (reply.mask & reply.arrived[:, None]).any(0)
            new = torch.where(heard, union | ~_prunable(setting, mask), mask)
            for span, count in zip(prunable(setting), self.sparsity.counts(setting)):
                size = torch.where(new[span.place], model[span.place].abs(), -1)
                order = size.argsort(descending=True, stable=True)
                new[span.place] &= torch.zeros_like(new[span.place]).index_fill(0, order[:count], True)
        return torch.where(new | ~heard, model, 0), {"mask": new}


def _prunable(setting: Setting, like: Tensor) -> Tensor:
    """Which numbers are weights that may be pruned [P]."""
    return torch.zeros_like(like).index_fill(0, torch.cat(places_of(setting, like.device)), True)
