"""Who takes part? Of some candidates those whose model is worst."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Select
from fedloom.core.types import Cohort, Reply, Setting, State
from fedloom.errors import BadExperiment


@dataclass(frozen=True)
class PowerOfChoice(Select):
    """Of `candidates` drawn by their share of the data, the `count` with the highest loss last heard of.

    Never fewer than `count` are drawn. A client that was never heard of comes first: its loss counts as infinite.
    """

    count: int = 10
    candidates: int = 20

    def __post_init__(self) -> None:
        for name in ("count", "candidates"):
            if getattr(self, name) < 1:
                raise BadExperiment(f"{name} (of clients a round) is {getattr(self, name)}; expected at least 1.")

    def init(self, setting: Setting, model: Tensor) -> State:
        """Nobody has been heard of."""
        return {"loss": torch.full((setting.fleet.size,), torch.inf, dtype=model.dtype, device=model.device)}

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """Equal losses, as those of strangers, go in the order of the draw."""
        size = setting.fleet.size
        asked = draw_by_weight(setting.fleet.examples.double(), min(max(self.count, self.candidates), size), chance)
        worst = memory["loss"][asked].argsort(descending=True, stable=True)[: self.count]
        ids = asked[worst].sort().values
        return Cohort(ids, torch.ones_like(ids, dtype=torch.bool)), memory

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """The mean training loss of those who arrived."""
        known, loss = memory["loss"][reply.ids], reply.report["loss"].to(memory["loss"].dtype)
        loss = torch.where(reply.arrived & loss.isfinite(), loss, known)
        return {"loss": memory["loss"].index_put((reply.ids,), loss)}


def draw_by_weight(weight: Tensor, count: int, chance: Chance, purpose: str = "select") -> Tensor:
    """`count` of the clients without repetition, one after the other in proportion to their weights [N]."""
    draw = chance.uniform(purpose, torch.arange(len(weight), device=weight.device)).double()
    keys = -torch.log1p(-draw) / weight  # exponential times to come: the heavier the sooner
    return keys.argsort(stable=True)[:count]
