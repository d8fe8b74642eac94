"""Who takes part? All of the fleet, though not everyone may send."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedloom.chance import Chance
from fedloom.core.part import Select
from fedloom.core.types import Cohort, Setting, State
from fedloom.parts.select.bernoulli import Bernoulli
from fedloom.parts.select.uniform import Uniform


@dataclass(frozen=True)
class Everyone(Select):
    """All clients, every round."""

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """The whole fleet."""
        ids = torch.arange(setting.fleet.size)
        return Cohort(ids, torch.ones_like(ids, dtype=torch.bool)), memory


@dataclass(frozen=True)
class SomeSend(Select):
    """All clients train; `count` of them may send, or each with a `probability`."""

    count: int = 10
    probability: float | None = None

    def __post_init__(self) -> None:
        self._senders()  # refuses what cannot be

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """The senders are those whom the same count or probability would select by itself."""
        chosen, _ = self._senders()({}, setting, chance)
        ids = torch.arange(setting.fleet.size)
        return Cohort(ids, torch.zeros_like(ids, dtype=torch.bool).index_fill(0, chosen.ids, True)), memory

    def _senders(self) -> Select:
        return Uniform(self.count) if self.probability is None else Bernoulli(self.probability)
