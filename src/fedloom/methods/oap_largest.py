"""OAP (Zhou et al., FL workshop of NeurIPS 2022): every round clients train the largest weights of the model.

Each client trains, of every hidden layer, the share of weights with the greatest magnitude in the current model; the
masks are computed anew every round. A number is the plain mean over the clients that have it. As in the published rule
a number that no client has becomes 0 (0 / 0 read as 0), so that weights outside the largest share of a cohort are
erased; `keep_untrained` leaves them unchanged. With a share of 1 for all clients this is FedAvg with equal weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.means import uniform_mean
from fedloom.core.paper import paper
from fedloom.core.part import Aggregate
from fedloom.core.types import Reply, Setting, State
from fedloom.method import Method
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.local.sub_model import SubModel
from fedloom.parts.mask.largest import Largest


@dataclass(frozen=True)
class Erasing(Aggregate):
    """The plain mean per number over its senders; numbers that nobody sent become 0, unless nothing arrived."""

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Average over senders, and erase the numbers without any."""
        new = uniform_mean(model, reply)
        if reply.mask is None:
            return new, memory
        covered = (reply.mask & reply.arrived[:, None]).any(0)
        return torch.where(covered | ~reply.arrived.any(), new, 0), memory

    def covered(self, model: Tensor, reply: Reply) -> Tensor:
        """All numbers: one that was not sent becomes 0."""
        return reply.arrived.any()


@paper(
    "Zhou et al., NeurIPS workshop",
    2022,
    "the largest weights of every hidden layer, the same for equal shares",
    reading="our first version",
)
def oap_largest(shares: tuple[float, ...] = (0.5,), keep_untrained: bool = False) -> Method:
    """`shares` are the capacity tiers, in weights of hidden layers."""
    mean = CoverageMean("uniform") if keep_untrained else Erasing()
    return Method(allocate=Tiers(shares), mask=Largest(), local=SubModel(own_part=False), aggregate=mean)
