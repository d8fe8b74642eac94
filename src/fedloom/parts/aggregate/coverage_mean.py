"""Aggregate: each number moves to the mean over the clients that sent it."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedloom.core.means import coverage_mean
from fedloom.core.part import Aggregate
from fedloom.core.types import Reply, Setting, State


@dataclass(frozen=True)
class CoverageMean(Aggregate):
    """The mean per number over its senders; numbers that nobody sent stay.

    Senders are weighted by their `examples`, uniformly, or by the sum of the weights that the goal gives their
    `targets`, such as the number of their tokens. The last tells the server more about a client.
    """

    weigh: Literal["examples", "uniform", "targets"] = "examples"

    @property
    def replaceable(self) -> bool:
        """Any other mean over senders serves as well."""
        return True

    @property
    def reads_weight(self) -> bool:
        """Sums of targets' weights come from the clients."""
        return self.weigh == "targets"

    @property
    def weighs_rows(self) -> bool:
        """A discount is one more weight."""
        return True

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Weigh the replies that arrived."""
        weight = reply.arrived.to(model.dtype)
        if self.weigh == "examples":
            weight = weight * reply.report["examples"]
        if self.weigh == "targets" and "weight" in reply.report:  # it is missing if no client was reached
            weight = weight * reply.report["weight"].to(weight)
        return coverage_mean(model, reply, weight), memory
