"""Admit: replies whose update is not too long; longer updates are clipped."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.means import clipped
from fedloom.core.types import Reply, Setting, Task, column
from fedloom.errors import BadExperiment
from fedloom.parts.admit.check import Check


@dataclass(frozen=True)
class Norm(Check):
    """An update's l2 norm, over the numbers sent, is clipped to `bound`; replies above `beyond * bound` are refused.

    In a mean of n equal weights one client then moves the model by at most `bound / n`. Extras that a rule sends with
    the weights are not clipped.
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
        """The reason for an update that is too long."""
        return "norm"

    def judge(self, setting: Setting, model: Tensor, task: Task, reply: Reply) -> tuple[Tensor, Reply]:
        """Clip and refuse; updates within the bound stay the same to the bit."""
        change, norm = clipped(reply.params - model, self.bound)
        params = torch.where(column(norm <= self.bound, change), reply.params, model + change)
        return ~(norm <= self.beyond * self.bound), reply._replace(params=params)
