"""Admit: replies without NaN and infinity."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.types import Reply, Setting, Task, largest
from fedloom.parts.admit.check import Check


@dataclass(frozen=True)
class Finite(Check):
    """Every number sent is finite: weights, extras and the reported loss and weight; -0.0 and subnormals are finite."""

    @property
    def reason(self) -> str:
        """The reason for a number that is not finite."""
        return "value"

    def judge(self, setting: Setting, model: Tensor, task: Task, reply: Reply) -> tuple[Tensor, Reply]:
        """Test the numbers sent; numbers not sent are the model's own by now."""
        return ~numbers_below(reply, torch.inf), reply


def numbers_below(reply: Reply, most: float) -> Tensor:
    """Which replies [C] consist of numbers below `most` in size: weights, extras and the reported loss and weight."""
    more = [*reply.extras.values(), *(v for name, v in reply.report.items() if name in ("loss", "weight"))]
    found = _below(reply.params, most)
    for value in more:
        if value.is_floating_point():
            found = found & _below(value, most)
    return found


def _below(values: Tensor, most: float) -> Tensor:
    """Which rows of numbers [C, ...] are all below `most` in size [C].

    Tested by the largest size, which a NaN makes NaN: a hundredth of the time of `isfinite`, and unlike a sum it cannot
    overflow.
    """
    return (values.abs() if values.dim() == 1 else largest(values.flatten(1))) < most
