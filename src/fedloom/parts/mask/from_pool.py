"""Mask: the network of a pool that is as large as a client's share."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Mask
from fedloom.core.pool import Pool
from fedloom.core.types import Portion, Setting, State
from fedloom.parts.mask.ranked import portion


@dataclass(frozen=True)
class FromPool(Mask):
    """The network of the `pool` whose size is nearest to the client's share of parameters."""

    pool: Pool = Pool()

    @property
    def of_neurons(self) -> bool:
        """It does."""
        return True

    @property
    def steady(self) -> bool:
        """The share alone decides."""
        return True

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Return the network's neurons."""
        sizes = self.pool.sizes(setting.neurons)
        nearest = (sizes - share.double()[:, None]).abs().argmin(1)
        return portion(setting.neurons, self.pool.keeps(setting.neurons)[nearest], sizes[nearest]), memory
