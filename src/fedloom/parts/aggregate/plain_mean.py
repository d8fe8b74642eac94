"""Aggregate: the plain mean of the models sent, in which a number that was not sent is a zero."""

from dataclasses import dataclass

from torch import Tensor

from fedloom.core.means import plain_mean
from fedloom.core.part import Aggregate
from fedloom.core.types import Reply, Setting, State


@dataclass(frozen=True)
class PlainMean(Aggregate):
    """`(1/m) sum x_i` of the m sparse models at hand; a number that nobody sent becomes 0, unless nothing arrived."""

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Average, counting zeros."""
        return plain_mean(model, reply), memory

    def covered(self, model: Tensor, reply: Reply) -> Tensor:
        """All numbers: one that was not sent counts as 0."""
        return reply.arrived.any()
