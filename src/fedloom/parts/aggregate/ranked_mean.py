"""How do replies become the next model? Each number moves to the middle of what was sent, whatever single clients say.

Clients weigh the same: how many examples one has is its own claim, and a weighted median follows who claims most.
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
HAIR = 1e-9  # so that a tenth of 30 is 3, whatever a float makes of it


@dataclass(frozen=True)
class Median(Aggregate):
    """The median per number over its senders, the mean of the middle two if they are even; what nobody sent stays."""

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """All but the middle is left out."""
        return mean_of_ranks(model, reply, lambda senders: (senders - 1).clamp(min=0) // 2), memory


@dataclass(frozen=True)
class TrimmedMean(Aggregate):
    """The mean per number over its senders without the `cut` lowest and highest of them; what nobody sent stays.

    Of n senders of a number `floor(cut * n)` are left out at either end, so that of few senders none may be.
    """

    cut: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.cut < 0.5:
            raise BadExperiment(f"cut (share left out at either end) is {self.cut}; it lies in [0, 0.5).")

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """By the count that sent the number."""
        return mean_of_ranks(model, reply, lambda senders: (self.cut * senders.double() + HAIR).floor().long()), memory


def mean_of_ranks(model: Tensor, reply: Reply, left_out: Callable[[Tensor], Tensor]) -> Tensor:
    """Per number the mean of what was sent, in order and without so many at either end [P].

    `left_out` says how many, of the counts of senders.
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
        values = torch.where(sent, reply.params[:, some], torch.inf)  # goes last
        # numpy sorts many short columns eight times as fast as torch
        ordered = torch.from_numpy(np.sort(values.numpy(), axis=0)) if on_host else values.sort(0).values
        senders = sent.sum(0)
        ends = left_out(senders)
        middle = torch.where((rank >= ends) & (rank < senders - ends), ordered, 0).sum(0, dtype=torch.float64)
        mean = middle / (senders - 2 * ends).clamp(min=1)
        done.append(torch.where(senders > 0, mean.to(model.dtype), model[some]))
    return torch.cat(done)
