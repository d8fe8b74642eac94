"""Select: clients drawn at random, all with equal probability."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Sampling
from fedloom.core.types import Cohort, Setting, State
from fedloom.parts.select.counted import Counted


@dataclass(frozen=True)
class Uniform(Counted):
    """`count` clients drawn without replacement; fewer if the fleet is smaller."""

    count: int = 10

    @property
    def drawn(self) -> Sampling:
        """A fixed number of clients."""
        return Sampling(cohort=self.count)

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """Draw the clients; they depend only on seed and round, so all methods get the same."""
        size = setting.fleet.size
        ids = chance.on_host().choose("select", min(self.count, size), size)
        return Cohort(ids, torch.ones_like(ids, dtype=torch.bool)), memory

    def next(self, memory: State, setting: Setting, chance: Chance, free: Tensor, count: int) -> tuple[Tensor, State]:
        """In rising order of the keys that decide a round's cohort."""
        return chance.on_host().order("select", len(free), free.cpu())[:count], memory
