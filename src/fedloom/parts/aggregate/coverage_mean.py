"""Aggregate: each number moves to the mean over the clients that sent it."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedloom.core.means import coverage_mean
from fedloom.core.part import Aggregate
from fedloom.core.types import Reply, Setting, State


@dataclass(frozen=True)
class CoverageMean(Aggregate):
    """The mean per number over its senders, weighted by examples or uniformly; numbers that nobody sent stay."""

    weigh: Literal["examples", "uniform"] = "examples"

    @property
    def replaceable(self) -> bool:
        """Any other mean over senders serves as well."""
        return True

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Weigh the replies that arrived."""
        weight = reply.arrived.to(model.dtype)
        if self.weigh == "examples":
            weight = weight * reply.report["examples"]
        return coverage_mean(model, reply, weight), memory
