"""FedAT (Chai et al., SC 2021, arXiv:2010.05958): fast and slow clients play rounds of their own.

Clients are sorted by their seconds for a round into `tiers` tiers of equal size. Every tier plays synchronous rounds:
`per_tier` of its clients train, and when all are done `u_m`, the tier's model, becomes their mean, weighted by
examples, and its count of rounds `c_m` grows. At once the server makes

    w = sum_m c_(T+1-m) / (sum c) * u_m

so that a tier that seldom finishes has the weight of the one that finishes most often, and the tier begins again from
`w`. Clients add `(mu / 2) * ||w - w_start||^2` to their loss.

Where the paper is silent: until every tier has finished a round, tiers weigh by their own `c_m`, since the reversed
weights can be 0 for all that have; the initial model never counts. The seconds of a round are those of the whole
model at the devices' mean rates, where the paper measures them. Steps and defaults are from memory of the paper, whose
text was not at hand; its `mu` is 0.4. Messages are compressed by the codec of the experiment instead of polylines.
With masks `u_m` keeps its numbers where the tier sent none, and a tier that never sent a number has no say in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from fedloom.core.means import coverage_mean
from fedloom.core.paper import paper
from fedloom.core.part import Aggregate
from fedloom.core.tiers import tiers_by_speed
from fedloom.core.types import Reply, Setting, State
from fedloom.core.work import Work
from fedloom.method import Method
from fedloom.parts.local.prox import Prox
from fedloom.parts.pace.by_tier import ByTier
from fedloom.parts.stale.as_model import AsModel

if TYPE_CHECKING:
    from fedloom.core.pace import Pace


@dataclass(frozen=True)
class CrossTier(Aggregate):
    """The mean of all tiers' models, weighted by how often the tier as far from the other end has made a step."""

    tiers: int = 5
    work: Work = Work()

    def for_work(self, work: Work) -> Self:
        """Compute seconds depend on the clients' work."""
        return replace(self, work=work)

    def clash(self, method: Method) -> str | None:
        """Refuse rounds in which other tiers are asked, or none."""
        pace: Pace = method.pace
        if pace.groups == self.tiers:
            return None
        asked = f"{type(pace).__name__} asks {pace.groups}" if pace.groups > 1 else f"{type(pace).__name__} has none"
        return f"it weighs {self.tiers} tiers, and {asked}; set method.tiers, or put ByTier({self.tiers}) into pace."

    def init(self, setting: Setting, model: Tensor) -> State:
        """No tier has made a step."""
        return {
            "tier": tiers_by_speed(setting, self.work, self.tiers, "CrossTier").to(model.device),
            "models": model.repeat(self.tiers, 1),  # u_m
            "known": torch.zeros(self.tiers, len(model), dtype=torch.bool, device=model.device),  # numbers ever sent
            "steps": torch.zeros(self.tiers, dtype=torch.int64, device=model.device),  # c_m
        }

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Move the models of the tiers that answered, then average all."""
        tiers = torch.arange(self.tiers, device=model.device)
        own = (memory["tier"][reply.ids] == tiers[:, None]) & reply.arrived  # [T, C]
        models, known = memory["models"].clone(), memory["known"].clone()
        for place, here in enumerate(own.unbind()):
            weight = here.to(model.dtype) * reply.report["examples"]
            sent = here.any() if reply.mask is None else (reply.mask & here[:, None]).any(0)
            models[place] = torch.where(sent, coverage_mean(model, _of(reply, here), weight), models[place])
            known[place] |= sent
        steps = memory["steps"] + own.any(1)
        counts = torch.where((steps > 0).all(), steps.flip(0), steps).to(model.dtype)
        weight = (counts / counts.sum().clamp(min=1))[:, None] * known  # [T, P]
        total = weight.sum(0)
        mean = (weight * models).sum(0) / total.masked_fill(total == 0, 1)
        new = torch.where((total > 0) & reply.arrived.any(), mean, model)
        return new, {**memory, "models": models, "known": known, "steps": steps}

    def covered(self, model: Tensor, reply: Reply) -> Tensor:
        """All numbers, by what is remembered of other tiers."""
        return reply.arrived.any()

    def record(self, memory: State) -> State:
        """The steps of the tier that made most and of the one that made fewest."""
        return {"most_steps": memory["steps"].max(), "fewest_steps": memory["steps"].min()}

    def note(self, setting: Setting) -> str:
        """How many clients a tier has."""
        return (
            f"tiers by the devices' speed: {self.tiers}, of about {setting.fleet.size / self.tiers:.3g} clients each."
        )


def _of(reply: Reply, here: Tensor) -> Reply:
    """The replies as if only these [C] had arrived, where numbers of the others are not counted as sent."""
    return reply._replace(arrived=here, mask=None if reply.mask is None else reply.mask & here[:, None])


@paper("Chai et al., SC", 2021, "none: whole models")
def fedat(tiers: int = 5, per_tier: int = 10, mu: float = 0.4) -> Method:
    """`mu` weighs the pull towards the model that a client was sent."""
    return Method(local=Prox(mu), stale=AsModel(), aggregate=CrossTier(tiers), pace=ByTier(tiers, per_tier))
