"""Aggregate: each number moves to the median or trimmed mean of the values sent, whatever single clients send.

All clients have equal weight: the number of examples is a client's own claim, and a weighted median would follow the
largest claim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedloom.core.part import Aggregate
from fedloom.core.types import Reply, Setting, State
from fedloom.errors import BadExperiment

BLOCK = 2**19  # numbers of a cohort that are sorted at a time on a CPU; they fit its cache
ROUNDING = 1e-9  # so that a tenth of 30 is 3 in floating point


@dataclass(frozen=True)
class Median(Aggregate):
    """The median per number over its senders, the mean of the middle two if they are even; numbers not sent stay."""

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Leave out all values but the middle one or two."""
        return mean_of_ranks(model, reply, lambda senders: (senders - 1).clamp(min=0) // 2), memory


@dataclass(frozen=True)
class TrimmedMean(Aggregate):
    """The mean per number over its senders without a share `cut` of the lowest and highest; numbers not sent stay.

    Of n senders of a number `floor(cut * n)` are left out at either end, which is none if n is small.
    """

    cut: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.cut < 0.5:
            raise BadExperiment(f"cut (share left out at either end) is {self.cut}; it lies in [0, 0.5).")

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Leave out values by the number of senders."""
        return mean_of_ranks(
            model, reply, lambda senders: (self.cut * senders.double() + ROUNDING).floor().long()
        ), memory


def mean_of_ranks(model: Tensor, reply: Reply, left_out: Callable[[Tensor], Tensor]) -> Tensor:
    """The mean per number of the values sent, without the lowest and highest ones [P].

    `left_out` maps the number of senders to how many values are left out at either end.
    """
    on_host = model.device.type == "cpu"
    width = max(1, (BLOCK if on_host else 128 * BLOCK) // max(1, len(reply.ids)))
    rank = torch.arange(len(reply.ids), device=model.device)[:, None]
    done = []
    for start in range(0, len(model), width):
        some = slice(start, start + width)
        sent = reply.arrived[:, None].expand(-1, len(model[some]))
        if reply.mask is not None:
            sent = sent & reply.mask[:, some]
        values = torch.where(sent, reply.params[:, some], torch.inf)  # sorts last
        # numpy sorts many short columns eight times as fast as torch
        ordered = torch.from_numpy(np.sort(values.numpy(), axis=0)) if on_host else values.sort(0).values
        senders = sent.sum(0)
        ends = left_out(senders)
        middle = torch.where((rank >= ends) & (rank < senders - ends), ordered, 0).sum(0, dtype=torch.float64)
        mean = middle / (senders - 2 * ends).clamp(min=1)
        done.append(torch.where(senders > 0, mean.to(model.dtype), model[some]))
    return torch.cat(done)
