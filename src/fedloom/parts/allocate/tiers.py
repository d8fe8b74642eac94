"""Allocate: a fixed share by each client's capacity tier."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Allocate
from fedloom.core.types import Setting, State
from fedloom.errors import BadExperiment


@lru_cache(maxsize=16)
def _on(shares: tuple[float, ...], device: torch.device) -> Tensor:
    """The tiers' shares [tiers] on a device, copied there once."""
    return torch.tensor([float(share) for share in shares], device=device)


@dataclass(frozen=True)
class Tiers(Allocate):
    """Client n has the share of tier n modulo the number of tiers, so that tiers have equal size. Unit: neurons."""

    shares: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)

    def __post_init__(self) -> None:
        if not self.shares:
            raise BadExperiment("shares is empty; name at least one tier's share.")
        for tier, share in enumerate(self.shares):
            if not 0 < share <= 1:
                raise BadExperiment(f"share of tier {tier} is {share}; a share lies above 0 and at most at 1.")

    @property
    def steady(self) -> bool:
        """A client stays in its tier."""
        return True

    def __call__(self, memory: State, setting: Setting, ids: Tensor, chance: Chance) -> tuple[Tensor, State]:
        """Look up the share of each client's tier [C]."""
        if len(self.shares) == 1:
            return torch.full(ids.shape, self.shares[0], device=ids.device), memory
        return _on(tuple(self.shares), ids.device)[ids % len(self.shares)], memory
