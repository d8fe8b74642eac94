"""How do replies become the next model? By those alone whose updates lie closest to each other's (Krum)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.part import Aggregate
from fedloom.core.types import Reply, Setting, State
from fedloom.errors import BadExperiment
from fedloom.parts.aggregate.coverage_mean import CoverageMean

HAIR = 1e-9  # so that a tenth of 30 is 3, whatever a float makes of it


@dataclass(frozen=True)
class Krum(Aggregate):
    """The coverage mean, with equal weights, of the `keep` replies that are nearest to the others (multi-Krum).

    Of n replies up to `f = ceil(attackers * n)` may be false. Two are compared over the numbers that both sent, by the
    mean of squared differences: a sum would make clients with little in common look alike. Where that is less than
    `overlap` of the smaller of their parts there is no distance. A reply's score is the mean of its `n - f - 2`
    smallest distances, or of all it has if those are fewer. One without any distance comes last; if no two can be
    compared all count. `keep` None keeps `n - f`; 1 is Krum itself, which moves only what that client sent.
    """

    attackers: float = 0.2
    keep: int | None = None
    overlap: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.attackers < 0.5:
            raise BadExperiment(f"attackers (share of the replies) is {self.attackers}; it lies in [0, 0.5).")
        if self.keep is not None and self.keep < 1:
            raise BadExperiment(f"keep (replies that count) is {self.keep}; it is at least 1.")
        if not 0 <= self.overlap <= 1:
            raise BadExperiment(f"overlap (of two clients' parts) is {self.overlap}; it lies between 0 and 1.")

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Whoever is not chosen counts as not arrived."""
        chosen = self.chosen(reply.params - model, reply)
        return CoverageMean("uniform")(memory, setting, model, reply._replace(arrived=chosen))

    def chosen(self, change: Tensor, reply: Reply) -> Tensor:
        """Who counts [C], by updates [C, P]; of equals the lowest id."""
        count = reply.arrived.sum()
        false = (self.attackers * count.double() - HAIR).ceil()
        nearest = distances(change, reply, self.overlap).sort(1).values
        known = nearest.isfinite()
        within = known & (torch.arange(len(change), device=change.device) < (count - false - 2).clamp(min=1))
        score = torch.where(within, nearest, 0).sum(1) / within.sum(1)  # NaN where there is no distance
        score = score.nan_to_num(nan=torch.inf).masked_fill(~reply.arrived, torch.inf)
        order = reply.ids.argsort()
        order = order[(score[order]).argsort(stable=True)]
        keep = count - false if self.keep is None else self.keep
        return reply.arrived & ((order.argsort() < keep) & score.isfinite() | ~known.any())


def distances(change: Tensor, reply: Reply, overlap: float = 0.0) -> Tensor:
    """Mean squared differences over the numbers that both sent [C, C]; infinite where there is no comparing."""
    sent = reply.arrived[:, None].expand_as(change) if reply.mask is None else reply.mask & reply.arrived[:, None]
    weight = sent.double()
    values = torch.where(sent, change.double(), 0)
    squares, shared, size = values.square() @ weight.T, weight @ weight.T, weight.sum(1)
    table = (squares + squares.T - 2 * values @ values.T).clamp(min=0) / shared
    least = (overlap * torch.minimum(size[:, None], size)).clamp(min=1)
    itself = torch.eye(len(table), dtype=torch.bool, device=table.device)
    return table.masked_fill(itself | (shared < least), torch.inf)
