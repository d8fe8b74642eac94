"""Aggregate: each number becomes the plain mean over the clients that changed it."""

from dataclasses import dataclass

from torch import Tensor

from fedloom.core.means import uniform_mean
from fedloom.core.part import Aggregate
from fedloom.core.types import Reply, Setting, State


@dataclass(frozen=True)
class ChangedMean(Aggregate):
    """The plain mean per number over the clients that changed it."""

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Count what moved."""
        return uniform_mean(model, reply._replace(mask=reply.params != model)), memory

    def covered(self, model: Tensor, reply: Reply) -> Tensor:
        """What any client changed."""
        return ((reply.params != model) & reply.arrived[:, None]).any(0)
