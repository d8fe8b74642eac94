"""Which replies count? Those whose update is not too long; long ones are shortened."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.types import Reply, Setting, Task, column
from fedloom.errors import BadExperiment
from fedloom.parts.admit.check import Check


def shortened(change: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """Changes [C, P] cut to an l2 norm of `bound`, and the norms they had [C]; one too long to be measured is 0."""
    norm = torch.linalg.vector_norm(change, dim=1)
    return change * column((bound / norm).clamp(max=1), change), norm


@dataclass(frozen=True)
class Norm(Check):
    """An update's l2 norm, over what was sent, is cut to `bound`, and the reply refused beyond `beyond` times that.

    In a mean of n equal weights one client then moves the model by `bound / n` at most. What a rule sends beside the
    weights is not cut.
    """

    bound: float = 10.0
    beyond: float = 10.0

    def __post_init__(self) -> None:
        if not self.bound > 0:
            raise BadExperiment(f"bound (of an update's norm) is {self.bound}; it must be above 0.")
        if not self.beyond >= 1:
            raise BadExperiment(f"beyond (how many times the bound is refused) is {self.beyond}; it is at least 1.")

    @property
    def reason(self) -> str:
        """An update that is too long."""
        return "norm"

    def judge(self, setting: Setting, model: Tensor, task: Task, reply: Reply) -> tuple[Tensor, Reply]:
        """Those within the bound stay as they are, to the bit."""
        change, norm = shortened(reply.params - model, self.bound)
        params = torch.where(column(norm <= self.bound, change), reply.params, model + change)
        return ~(norm <= self.beyond * self.bound), reply._replace(params=params)
