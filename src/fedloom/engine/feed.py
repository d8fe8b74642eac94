"""The batches of a cohort's steps, whose examples are gathered when a step needs them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.core.types import Batch, Examples
from fedloom.core.work import Batches


class Stretch(NamedTuple):
    """Some steps of the same clients, one after another."""

    x: Iterator[Tensor]  # [s, C, B, ...] each: examples of the next few steps, in the place of those before
    y: Tensor  # [S, C, B]
    weight: Tensor  # [S, C, B]


@dataclass(frozen=True)
class Feed:
    """A cohort's steps; their examples are gathered when they are needed."""

    data: Examples
    batches: Batches

    def __iter__(self) -> Iterator[Batch]:
        """The steps one by one."""
        order, targets, weight = self._steps()
        x, shape, active = self.data.x, self.data.x.shape[1:], self.batches.active
        for now, index, y, own, keys in zip(active, order, targets, weight, self.batches.keys.unbind(1)):
            if now < len(index):
                index, y, own, keys = index[:now], y[:now], own[:now], keys[:now]
            # quicker than x[index]
            yield Batch(x.index_select(0, index.view(-1)).view(*index.shape, *shape), y, own, keys)

    def stretches(self, examples: int, numbers: int) -> Iterator[Stretch]:
        """The same in stretches of up to so many examples, of which up to so many numbers are gathered at once."""
        order, y, weight = self._steps()
        first, steps, active = 0, len(self.batches.active), self.batches.active
        while first < steps:
            now = active[first]
            end = min(steps, first + max(1, examples // (now * order.shape[2])))
            end = next((at for at in range(first, end) if active[at] != now), end)
            part = slice(first, end), slice(now)
            yield Stretch(self._gathered(order[part], numbers), y[part], weight[part])
            first = end

    def _gathered(self, order: Tensor, numbers: int) -> Iterator[Tensor]:
        """Examples of a few steps at a time, always in one place: fresh memory can take longer than copying."""
        x, (steps, clients, width) = self.data.x, order.shape
        each = clients * width  # examples of a step
        some = min(steps, max(1, numbers // max(1, each * x[0].numel())))
        place = x.new_empty(some * each, *x.shape[1:])
        for index in order.reshape(-1).split(some * each):
            found = torch.index_select(x, 0, index, out=place[: len(index)])
            yield found.view(-1, clients, width, *x.shape[1:])

    def _steps(self) -> tuple[Tensor, Tensor, Tensor]:
        """Places, targets and weights of the examples of every step [S, C, B]."""
        order = self.batches.examples.transpose(0, 1).contiguous()
        weight = self.batches.real.transpose(0, 1).to(torch.float32)
        weight /= weight.sum(2, keepdim=True)
        return order, self.data.y[order], weight
