"""Paces and readings of stale replies that an experiment chooses by name, for any method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from fedloom.core.pace import Pace
from fedloom.core.stale import Stale
from fedloom.method import SLOTS, Method
from fedloom.parts.pace.barrier import Barrier
from fedloom.parts.pace.buffered import Buffered
from fedloom.parts.pace.by_tier import ByTier
from fedloom.parts.pace.windowed import Windowed
from fedloom.parts.stale.as_change import AsChange
from fedloom.parts.stale.as_model import AsModel
from fedloom.parts.stale.discounts import Constant, Cutoff, Discount, Hinge, Polynomial
from fedloom.runs.settings import fit

DiscountName = Literal["polynomial", "constant", "hinge", "cutoff"]
DISCOUNTS: dict[str, Callable[..., Discount]] = {
    "polynomial": Polynomial,
    "constant": Constant,
    "hinge": Hinge,
    "cutoff": Cutoff,
}


def change(
    discount: DiscountName = "polynomial",
    exponent: float | None = None,
    slope: float | None = None,
    bound: float | None = None,
    rest: float | None = None,
    spread: Literal["update", "weight"] = "update",
    by: Literal["steps", "numbers"] | None = None,
) -> AsChange:
    """What a client changed is added to the model as it is now (FedBuff).

    `exponent` is the polynomial's (0.5), `slope` and `bound` the hinge's (10, 4), `bound` and `rest` the cutoff's.
    """
    return AsChange(_discount(discount, exponent=exponent, slope=slope, bound=bound, rest=rest), spread, by)


def model(
    alpha: float = 1.0,
    discount: DiscountName = "polynomial",
    exponent: float | None = None,
    slope: float | None = None,
    bound: float | None = None,
    rest: float | None = None,
    by: Literal["steps", "numbers"] | None = None,
) -> AsModel:
    """The model goes `alpha` of the way to the client's, however old that is (FedAsync)."""
    return AsModel(alpha, _discount(discount, exponent=exponent, slope=slope, bound=bound, rest=rest), by)


def _discount(name: str, **settings: float | None) -> Discount:
    """A discount by name, with the settings that were given."""
    given = {key: value for key, value in settings.items() if value is not None}
    return DISCOUNTS[name](**fit(f"stale.discount '{name}'", DISCOUNTS[name], given))


PACES: dict[str, Callable[..., Pace]] = {
    "barrier": Barrier,
    "buffered": Buffered,
    "windowed": Windowed,
    "by-tier": ByTier,
}
STALES: dict[str, Callable[..., Stale]] = {"change": change, "model": model}


def refill_of(method: Method, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a buffered pace, with a `refill` that the method's parts can do where none is set."""
    together = any(not getattr(method, slot).alone for slot in SLOTS if slot != "local")
    return {"refill": "step", **settings} if together else settings


def stale_of(method: Method, pace: Pace) -> Stale:
    """What stale replies mean at a pace that was chosen by name, where nobody said: FedBuff's discount."""
    return AsChange(Polynomial()) if method.stale == AsChange() and not pace.barrier else method.stale
