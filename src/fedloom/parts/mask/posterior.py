"""Mask: a sparse model for all clients, whose weights are drawn from posteriors that clients vote on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Mask
from fedloom.core.sparsity import Sparsity, places_of, smallest
from fedloom.core.types import Portion, Reply, Setting, State
from fedloom.parts.mask.sparse import shared, summed, weights_of

ATTEMPTS = 24  # each succeeds with a probability above 0.95


@dataclass(frozen=True)
class Posterior(Mask):
    """The weights whose drawn probabilities of belonging to the network are highest."""

    sparsity: Sparsity = Sparsity()
    gamma: float = 0.5
    strength: float = 10.0

    @property
    def learns(self) -> bool:
        """From what clients return and offer."""
        return True

    def init(self, setting: Setting, model: Tensor) -> State:
        """The largest weights, and posteriors that know nothing."""
        ones = torch.ones_like(model, dtype=torch.float64)
        return {"mask": self.sparsity.largest(setting, model), "alpha": ones, "beta": ones.clone()}

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Return the mask, for everybody."""
        return shared(memory["mask"], self.sparsity, len(ids)), memory

    def settle(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Count the votes, and in rounds with an exchange draw the next mask."""
        assert reply.chance is not None
        mask, number, heard = memory["mask"], reply.chance.round, reply.arrived.any()
        places, part = places_of(setting, model.device), self.sparsity.part(reply.chance.round)
        both = torch.cat((model[None], reply.params))
        votes = (~smallest(both, mask.expand(len(both), -1), places, part)).double()
        found = (1 - self.gamma) * votes[0] + self.gamma * (weights_of(reply) @ votes[1:])
        counts = mask.clone()
        if self.sparsity.adjusts(number):
            offers = summed(reply, torch.ones_like(reply.extras["places"]), model.double())
            found = torch.where(mask, found, 0.5 * (1 - self.gamma) + self.gamma * offers)
            counts = torch.ones_like(mask)
        gain = torch.where(counts & heard, self.strength, 0.0)
        alpha, beta = memory["alpha"] + gain * found, memory["beta"] + gain * (1 - found)
        new = mask
        if self.sparsity.adjusts(number):
            new = torch.where(heard, self.drawn(mask, alpha, beta, places, reply.chance), mask)
        kept = {"mask": new, "alpha": alpha, "beta": beta}
        return torch.where((mask & new) | ~heard, model, 0), kept

    def drawn(self, mask: Tensor, alpha: Tensor, beta: Tensor, places: list[Tensor], chance: Chance) -> Tensor:
        """The next mask [P]: of each tensor the weights with the highest draws, as many as before."""
        new, first = mask.clone(), gamma_draw(alpha, chance, 0)
        draws = first / (first + gamma_draw(beta, chance, 1))
        for place in places:
            order = draws[place].argsort(descending=True, stable=True)
            new[place] = torch.zeros_like(new[place]).index_fill(0, order[: int(mask[place].sum())], True)
        return new


def gamma_draw(shape: Tensor, chance: Chance, which: int) -> Tensor:
    """Numbers of the gamma distribution with these shapes of at least 1, by Marsaglia and Tsang's method."""
    d, at = shape - 1 / 3, torch.arange(len(shape), device=shape.device)
    found = d.clone()  # the median, nearly, where every attempt fails
    for attempt in reversed(range(ATTEMPTS)):  # the first attempt that succeeds counts
        x = chance.normal("posterior", which, 2 * attempt, at)
        v = (1 + x / (9 * d).sqrt()) ** 3
        u = chance.uniform("posterior", which, 2 * attempt + 1, at).double().clamp(min=1e-12)
        right = (v > 0) & (u.log() < 0.5 * x * x + d - d * v + d * v.clamp(min=1e-300).log())
        found = torch.where(right, d * v, found)
    return found
