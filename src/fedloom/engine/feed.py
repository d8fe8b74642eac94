"""The batches of a cohort's steps, whose examples are gathered when a step needs them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.types import Batch, Examples
from fedloom.core.work import Batches


@dataclass(frozen=True)
class Feed:
    """A cohort's batches; their examples are gathered when a step needs them."""

    data: Examples
    batches: Batches

    def __iter__(self) -> Iterator[Batch]:
        """One batch for each step, of the clients that take it."""
        order, targets, weight = self._steps()
        x, shape, active = self.data.x, self.data.x.shape[1:], self.batches.active
        for now, index, y, own, keys in zip(active, order, targets, weight, self.batches.keys.unbind(1)):
            if now < len(index):
                index, y, own, keys = index[:now], y[:now], own[:now], keys[:now]
            # quicker than x[index]
            yield Batch(x.index_select(0, index.view(-1)).view(*index.shape, *shape), y, own, keys)

    def _steps(self) -> tuple[Tensor, Tensor, Tensor]:
        """Row numbers, targets and weights of every step's examples [S, C, B]."""
        order = self.batches.examples.transpose(0, 1).contiguous()
        weight = self.batches.real.transpose(0, 1).to(torch.float32)
        weight /= weight.sum(2, keepdim=True)
        return order, self.data.y[order], weight
