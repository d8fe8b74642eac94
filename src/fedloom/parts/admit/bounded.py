"""Admit: replies whose numbers are of a size that can be computed with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.types import Reply, Setting, Task
from fedloom.errors import BadExperiment
from fedloom.parts.admit.check import Check
from fedloom.parts.admit.finite import numbers_below


@dataclass(frozen=True)
class Bounded(Check):
    """Every number sent is finite and at most `most` in size, so that no sum or sum of squares overflows.

    With 1e15 the squares of 3e8 numbers add up in single precision.
    """

    most: float = 1e15

    def __post_init__(self) -> None:
        if not 0 < self.most < torch.inf:
            raise BadExperiment(f"most (size of a number) is {self.most}; it is above 0 and finite.")

    @property
    def reason(self) -> str:
        """The reason for a number that cannot be computed with."""
        return "value"

    def judge(self, setting: Setting, model: Tensor, task: Task, reply: Reply) -> tuple[Tensor, Reply]:
        """Test the numbers sent; numbers not sent are the model's own by now."""
        return ~numbers_below(reply, self.most), reply
