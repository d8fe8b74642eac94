"""Aggregate: the mean of the replies whose updates lie closest to each other (Krum)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.means import uniform_mean
from fedloom.core.part import Aggregate
from fedloom.core.types import Reply, Setting, State
from fedloom.errors import BadExperiment

ROUNDING = 1e-9  # so that a tenth of 30 is 3 in floating point


@dataclass(frozen=True)
class Krum(Aggregate):
    """The coverage mean, with equal weights, of the `keep` replies that are nearest to the others (multi-Krum).

    Of n replies up to `f = ceil(attackers * n)` may be false. Two replies are compared over the numbers that both sent,
    by the mean of squared differences: a sum would make clients with few numbers in common look similar. If they share
    less than `overlap` of the smaller part, they have no distance. A reply's score is the mean of its `n - f - 2`
    smallest distances, or of all it has if those are fewer. A reply without any distance comes last; if no two can be
    compared all count. `keep` None keeps `n - f`; 1 is Krum itself, which moves only the numbers that this client sent.
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
        """Average the chosen replies; the others count as not arrived."""
        chosen = self.chosen(reply.params - model, reply)
        return uniform_mean(model, reply._replace(arrived=chosen)), memory

    def covered(self, model: Tensor, reply: Reply) -> Tensor:
        """The numbers of the chosen replies."""
        return super().covered(model, reply._replace(arrived=self.chosen(reply.params - model, reply)))

    def chosen(self, change: Tensor, reply: Reply) -> Tensor:
        """Which replies count [C], by their updates [C, P]; of equal scores the lowest id wins."""
        count = reply.arrived.sum()
        false = (self.attackers * count.double() - ROUNDING).ceil()
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
    """Mean squared differences over the numbers that both sent [C, C]; infinite where two cannot be compared."""
    sent = reply.arrived[:, None].expand_as(change) if reply.mask is None else reply.mask & reply.arrived[:, None]
    weight = sent.double()
    values = torch.where(sent, change.double(), 0)
    squares, shared, size = values.square() @ weight.T, weight @ weight.T, weight.sum(1)
    products = values @ values.T  # may differ from its transpose in the last bit, and equal scores must stay equal
    table = (squares + squares.T - (products + products.T)).clamp(min=0) / shared
    least = (overlap * torch.minimum(size[:, None], size)).clamp(min=1)
    itself = torch.eye(len(table), dtype=torch.bool, device=table.device)
    return table.masked_fill(itself | (shared < least), torch.inf)
