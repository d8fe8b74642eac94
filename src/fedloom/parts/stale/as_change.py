"""Stale: a reply is what it changed of the model that its client was sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from fedloom.core.stale import Stale
from fedloom.core.staleness import as_change, factors, shrink
from fedloom.core.types import Reply
from fedloom.errors import BadExperiment, unknown
from fedloom.parts.stale.discounts import Constant, Discount

if TYPE_CHECKING:
    from fedloom.method import Method

SPREADS = ("update", "weight")


@dataclass(frozen=True)
class AsChange(Stale):
    """`w + (x - B)` for a reply `x` to the model `B`, where the model is `w` now, as in FedBuff.

    `discount` is a function `s` of staleness. It is spread as `update`: what is left of the change is `s` times it,
    and rows keep their weights, so that a step of old replies is a smaller step. Or as `weight`: rows keep their
    changes, and their weights in the mean are multiplied by `s`, so that fresh rows have more say in a step as long.
    """

    discount: Discount = Constant()
    spread: Literal["update", "weight"] = "update"
    by: Literal["steps", "numbers"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.spread not in SPREADS:
            raise BadExperiment(unknown("spread of a discount", self.spread, SPREADS))

    @property
    def discounts(self) -> bool:
        """Unless the discount is constant."""
        return self.discount != Constant()

    def clash(self, method: Method) -> str | None:
        """Refuse aggregates that would not read the weights."""
        if self.spread == "update" or method.aggregate.weighs_rows:
            return None
        return (
            f"with spread='weight' the discount is a weight of rows, which {type(method.aggregate).__name__} does not "
            "read; take spread='update', or a coverage mean."
        )

    def rebase(self, model: Tensor, bases: Tensor, reply: Reply, given: Tensor | None = None) -> Reply:
        """Put the changes on the model as it is now."""
        return as_change(model, bases, reply, given)

    def lessen(self, model: Tensor, reply: Reply) -> Reply:
        """Discount the changes, or the weights."""
        if reply.staleness is None or self.discount == Constant():
            return reply
        factor = factors(self.discount, reply.staleness, model)
        return shrink(model, reply, factor) if self.spread == "update" else reply._replace(weight=factor)
