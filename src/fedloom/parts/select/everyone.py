"""Select: the whole fleet trains, and all clients or some of them may send."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Sampling, Select
from fedloom.core.types import Cohort, Setting, State
from fedloom.parts.select.bernoulli import Bernoulli
from fedloom.parts.select.uniform import Uniform


@dataclass(frozen=True)
class Everyone(Select):
    """All clients, every round."""

    @property
    def drawn(self) -> Sampling:
        """Each client with probability 1."""
        return Sampling(probability=1.0)

    @property
    def whole_fleet(self) -> bool:
        """Every client trains."""
        return True

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """Return the whole fleet."""
        ids = torch.arange(setting.fleet.size)
        return Cohort(ids, torch.ones_like(ids, dtype=torch.bool)), memory

    def next(self, memory: State, setting: Setting, chance: Chance, free: Tensor, count: int) -> tuple[Tensor, State]:
        """Everybody who is free, by number."""
        return free.cpu().nonzero().flatten()[:count], memory


@dataclass(frozen=True)
class SomeSend(Select):
    """All clients train; `count` of them may send, or each with a `probability`."""

    count: int = 10
    probability: float | None = None

    def __post_init__(self) -> None:
        self._senders()  # refuses a wrong count or probability

    @property
    def drawn(self) -> Sampling | None:
        """How the senders are drawn."""
        return self._senders().drawn

    @property
    def whole_fleet(self) -> bool:
        """Every client trains, whether it may send or not."""
        return True

    def with_count(self, count: int) -> Self | None:
        """This part with another number of senders; None where a probability decides."""
        return replace(self, count=count) if self.probability is None else None

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """Return the whole fleet; the senders are the clients that `Uniform` or `Bernoulli` would select."""
        chosen, _ = self._senders()({}, setting, chance)
        ids = torch.arange(setting.fleet.size)
        return Cohort(ids, torch.zeros_like(ids, dtype=torch.bool).index_fill(0, chosen.ids, True)), memory

    def _senders(self) -> Select:
        return Uniform(self.count) if self.probability is None else Bernoulli(self.probability)
