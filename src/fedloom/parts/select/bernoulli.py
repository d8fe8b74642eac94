"""Who takes part? Everyone by the toss of a coin."""

from dataclasses import dataclass

import torch

from fedloom.chance import Chance
from fedloom.core.part import Select
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

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """Whoever drew the least is there in any case."""
        draw = chance.on_host().uniform("select", torch.arange(setting.fleet.size))
        ids = ((draw < self.probability) | (draw == draw.min())).nonzero().flatten()
        return Cohort(ids, torch.ones_like(ids, dtype=torch.bool)), memory
