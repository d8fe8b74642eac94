"""Pace: fast and slow clients play rounds of their own, each of which ends in a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedloom.core.flight import ARRIVED, Asked, Flight
from fedloom.core.pace import Pace, Wish
from fedloom.core.tiers import tiers_by_speed
from fedloom.core.types import Setting, State
from fedloom.core.work import Work
from fedloom.errors import BadExperiment


@dataclass(frozen=True)
class ByTier(Pace):
    """`per_tier` clients of each of `tiers` tiers are asked, and a step is made when nobody of a tier is awaited.

    Tiers have equal size and are made of the devices' seconds for the whole model, the fastest first. The tier of a
    step asks again at once, and others go on. Of a tier that nobody answered no step is made: it asks again after the
    next one of another tier. One tier is a round with a barrier.
    """

    tiers: int = 5
    per_tier: int = 10
    work: Work = Work()

    def __post_init__(self) -> None:
        for name, value in (("tiers", self.tiers), ("per_tier", self.per_tier)):
            if value < 1:
                raise BadExperiment(f"{name} is {value}; there is at least 1.")

    @property
    def slots(self) -> int:
        """Those of all tiers together."""
        return self.tiers * self.per_tier

    @property
    def goal(self) -> int:
        """A tier's."""
        return self.per_tier

    @property
    def groups(self) -> int:
        """The tiers."""
        return self.tiers

    def for_work(self, work: Work) -> Self:
        """Compute seconds depend on the clients' work."""
        return replace(self, work=work)

    def init(self, setting: Setting, model: Tensor) -> State:
        """The tier of each client [N]."""
        return {"tier": tiers_by_speed(setting, self.work, self.tiers, "ByTier").cpu()}

    def resume(self, setting: Setting, model: Tensor, saved: State) -> State:
        """On the host, where clients are asked."""
        return {name: value.clone() for name, value in saved.items()}

    def wish(self, memory: State, flight: Flight, able: NDArray[np.bool_]) -> Wish:
        """The clients of the first tier that has asked nobody since its last step."""
        tier = memory["tier"].numpy()
        asking = {int(tier[task.client]) for task in flight.tasks.values()}
        for one in range(self.tiers):
            among = tier == one
            if one not in asking and bool((flight.free & among & able).any()):
                return Wish(self.per_tier, among)
        return Wish(0)

    def due(self, memory: State, flight: Flight, quiet: bool) -> list[Asked] | None:
        """The replies of the first tier of which somebody answered and nobody is awaited; none where all is quiet."""
        for tasks in _by_tier(memory["tier"].numpy(), flight):
            arrived = [task for task in tasks if task.fate == ARRIVED]
            if arrived and all(task.ended for task in tasks):
                return arrived
        return [] if quiet else None


def _by_tier(tier: NDArray[np.int64], flight: Flight) -> Iterator[list[Asked]]:
    """The tasks of each tier, fastest first."""
    found: dict[int, list[Asked]] = {}
    for task in flight.tasks.values():
        found.setdefault(int(tier[task.client]), []).append(task)
    return (found[one] for one in sorted(found))
