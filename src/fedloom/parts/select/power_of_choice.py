"""Select: the clients of highest loss among candidates drawn at random."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.types import Cohort, Reply, Setting, State
from fedloom.errors import BadExperiment
from fedloom.parts.select.counted import Counted


@dataclass(frozen=True)
class PowerOfChoice(Counted):
    """Of `candidates` drawn by their share of the data, the `count` clients whose last reported loss is highest.

    At least `count` candidates are drawn. A client that never answered comes first: its loss counts as infinite.
    """

    count: int = 10
    candidates: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.candidates < 1:
            raise BadExperiment(f"candidates (clients drawn a round) is {self.candidates}; expected at least 1.")

    @property
    def needs_losses(self) -> bool:
        """Candidates are ranked by loss."""
        return True

    def init(self, setting: Setting, model: Tensor) -> State:
        """No loss is known."""
        return {"loss": torch.full((setting.fleet.size,), torch.inf, dtype=model.dtype, device=model.device)}

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """Draw candidates and rank them; equal losses, as of clients that never answered, keep the draw's order."""
        size = setting.fleet.size
        asked = draw_by_weight(setting.fleet.examples.double(), min(max(self.count, self.candidates), size), chance)
        worst = memory["loss"][asked].argsort(descending=True, stable=True)[: self.count]
        ids = asked[worst].sort().values
        return Cohort(ids, torch.ones_like(ids, dtype=torch.bool)), memory

    def next(self, memory: State, setting: Setting, chance: Chance, free: Tensor, count: int) -> tuple[Tensor, State]:
        """Of the free among `candidates` drawn as in a round, by falling loss; then the other free clients as drawn."""
        size = setting.fleet.size
        drawn = draw_by_weight(setting.fleet.examples.double(), size, chance)
        drawn = drawn[free.to(drawn.device)[drawn]]
        asked, others = drawn.tensor_split([min(max(self.count, self.candidates), size)])
        worst = memory["loss"][asked].argsort(descending=True, stable=True)
        return torch.cat((asked[worst], others))[:count].cpu(), memory

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """Remember the mean training losses of the replies that arrived."""
        known, loss = memory["loss"][reply.ids], reply.report["loss"].to(memory["loss"].dtype).clamp(min=0)
        loss = torch.where(reply.arrived & loss.isfinite(), loss, known)
        return {"loss": memory["loss"].index_put((reply.ids,), loss)}


def draw_by_weight(weight: Tensor, count: int, chance: Chance, purpose: str = "select") -> Tensor:
    """Draw `count` clients without replacement, one after another in proportion to their weights [N]."""
    draw = chance.uniform(purpose, torch.arange(len(weight), device=weight.device)).double()
    keys = -torch.log1p(-draw) / weight  # exponential waiting times, shorter for heavier weights
    return keys.argsort(stable=True)[:count]
