"""Who takes part? Everyone is equally likely."""

from dataclasses import dataclass

import torch

from fedloom.chance import Chance
from fedloom.core.part import Select
from fedloom.core.types import Cohort, Setting, State
from fedloom.errors import BadExperiment


@dataclass(frozen=True)
class Uniform(Select):
    """`count` clients drawn without repetition; fewer if the fleet is smaller."""

    count: int = 10

    def __post_init__(self) -> None:
        if self.count < 1:
            raise BadExperiment(f"count of clients a round is {self.count}; at least 1 must take part.")

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """The same clients for every method under the same seed and round."""
        size = setting.fleet.size
        ids = chance.on_host().choose("select", min(self.count, size), size)
        return Cohort(ids, torch.ones_like(ids, dtype=torch.bool)), memory
