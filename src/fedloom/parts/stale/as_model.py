"""Stale: a reply is a model, however old, and the server goes part of the way to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedloom.core.stale import Stale
from fedloom.core.staleness import factors, shrink
from fedloom.core.types import Reply
from fedloom.errors import BadExperiment
from fedloom.parts.stale.discounts import Constant, Discount


@dataclass(frozen=True)
class AsModel(Stale):
    """`w + alpha * s(tau) * (x - w)` for a reply `x`, where the model is `w` and `s` the discount, as in FedAsync."""

    alpha: float = 1.0
    discount: Discount = Constant()
    by: Literal["steps", "numbers"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.alpha <= 1:
            raise BadExperiment(f"alpha (part of the way to a reply) is {self.alpha}; it lies between 0 and 1.")

    @property
    def discounts(self) -> bool:
        """Unless the discount is constant."""
        return self.discount != Constant()

    def rebase(self, model: Tensor, bases: Tensor, reply: Reply, given: Tensor | None = None) -> Reply:
        """Take it as it is."""
        return reply

    def lessen(self, model: Tensor, reply: Reply) -> Reply:
        """Shorten the way to it."""
        if reply.staleness is None or (self.alpha == 1 and self.discount == Constant()):
            return reply
        return shrink(model, reply, factors(lambda tau: self.alpha * self.discount(tau), reply.staleness, model))
