"""Select: every client takes part with a fixed probability."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Sampling, Select
from fedloom.core.types import Cohort, Setting, State
from fedloom.errors import BadExperiment


@dataclass(frozen=True)
class Bernoulli(Select):
    """Each client with this probability, independently of the others; at least one."""

    probability: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.probability <= 1:
            raise BadExperiment(
                f"probability (of taking part) is {self.probability}; it lies above 0 and at most at 1."
            )

    @property
    def drawn(self) -> Sampling:
        """Each client by itself."""
        return Sampling(probability=self.probability)

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """Compare each client's draw with the probability; the client with the smallest draw always takes part."""
        draw = chance.on_host().uniform("select", torch.arange(setting.fleet.size))
        ids = ((draw < self.probability) | (draw == draw.min())).nonzero().flatten()
        return Cohort(ids, torch.ones_like(ids, dtype=torch.bool)), memory

    def next(self, memory: State, setting: Setting, chance: Chance, free: Tensor, count: int) -> tuple[Tensor, State]:
        """The free clients of the cohort that a round would have, by draw."""
        draw = chance.on_host().uniform("select", torch.arange(len(free)))
        order = draw.argsort(stable=True)
        chosen = (draw < self.probability) | (draw == draw.min())
        return order[(free.cpu() & chosen)[order]][:count], memory
