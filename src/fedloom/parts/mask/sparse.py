"""Mask: one sparse model of fixed density for all clients, some of whose weights are exchanged every few rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Mask
from fedloom.core.sparsity import Sparsity, exchanged, places_of
from fedloom.core.types import Portion, Reply, Setting, State


@dataclass(frozen=True)
class Sparse(Mask):
    """The largest weights of the first model; later the smallest give way to those that clients offer (`Candidates`).

    Offers are averaged by examples. With `random` growth any weights take their place, which is a control.
    """

    sparsity: Sparsity = Sparsity()
    growth: Literal["gradient", "random"] = "gradient"

    @property
    def learns(self) -> bool:
        """From what clients offer."""
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
        """Exchange weights if it is the round for it; all that is not in the mask is 0 in the model."""
        assert reply.chance is not None
        mask = new = memory["mask"]
        number = reply.chance.round
        if self.sparsity.adjusts(number):
            places = self.sparsity.turn(number, places_of(setting, model.device))
            if self.growth == "random":
                scores = reply.chance.uniform("growth", torch.arange(len(model), device=model.device)).to(model)
            else:
                scores = summed(reply, reply.extras["values"], model)
            found = exchanged(model[None], mask[None], scores[None], places, self.sparsity.part(number))[0]
            new = torch.where(reply.arrived.any(), found, mask)
        return torch.where((mask & new) | ~reply.arrived.any(), model, 0), {"mask": new}


def shared(mask: Tensor, sparsity: Sparsity, clients: int) -> Portion:
    """One mask [P] for all clients; none where everything is kept."""
    return Portion() if sparsity.density == 1 else Portion(mask.repeat(clients, 1))


def weights_of(reply: Reply) -> Tensor:
    """The weight of each reply by its examples [C], which adds up to 1; 0 for those that did not arrive."""
    examples = torch.where(reply.arrived, reply.report["examples"], 0).double()
    return examples / examples.sum().clamp(min=1)


def summed(reply: Reply, values: Tensor, model: Tensor) -> Tensor:
    """The mean by examples of what clients offer at their `places` [C, n], over all numbers [P]."""
    places = torch.where(reply.arrived[:, None], reply.extras["places"], -1)
    weighed = torch.where(places >= 0, values.to(model) * weights_of(reply).to(model)[:, None], 0)
    total = model.new_zeros(len(model) + 1)  # the last takes what is not offered
    return total.index_add(0, (places % len(total)).flatten(), weighed.flatten())[:-1]
