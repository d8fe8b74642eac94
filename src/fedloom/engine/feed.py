"""The batches of a cohort's steps: examples are gathered, transformed and weighed when a step needs them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.chance import absorb
from fedloom.core.goal import Goal, Transform
from fedloom.core.types import Batch, Examples
from fedloom.core.work import Batches
from fedloom.data.augment import mixes

PLACE = 0x706C616365  # parts an example's key from the network's own, which absorbs small numbers


@dataclass(frozen=True)
class Feed:
    """A cohort's batches; their examples are gathered when a step needs them."""

    data: Examples
    batches: Batches
    goal: Goal
    transform: Transform | None = None
    dtype: torch.dtype = torch.float32  # of the weights

    def __iter__(self) -> Iterator[Batch]:
        """One batch for each step, of the clients that take it."""
        order, real = (t.transpose(0, 1).contiguous() for t in (self.batches.examples, self.batches.real))  # [S, C, B]
        keys = self.batches.keys.unbind(1)
        return self._plain(order, real, keys) if self.transform is None else self._transformed(order, real, keys)

    def _plain(self, order: Tensor, real: Tensor, keys: tuple[Tensor, ...]) -> Iterator[Batch]:
        """Batches of examples as they are; targets and weights of all steps are read at once."""
        x, shape, targets = self.data.x, self.data.x.shape[1:], self.data.y[order]
        weight = weights(self.goal, targets, real, self.dtype)
        for now, index, y, own, key in zip(self.batches.active, order, targets, weight, keys):
            if now < len(index):
                index, y, own, key = index[:now], y[:now], own[:now], key[:now]
            # quicker than x[index]
            yield Batch(x.index_select(0, index.view(-1)).view(*index.shape, *shape), y, own, key)

    def _transformed(self, order: Tensor, real: Tensor, keys: tuple[Tensor, ...]) -> Iterator[Batch]:
        """Batches of transformed examples; what counts is the target that the transform made."""
        for now, index, own, key in zip(self.batches.active, order, real, keys):
            x, y = gather(self.data, index[:now], own[:now], key[:now], self.transform)
            yield Batch(x, y, weights(self.goal, y, own[:now], self.dtype), key[:now])


def weights(goal: Goal, y: Tensor, real: Tensor, dtype: torch.dtype) -> Tensor:
    """The weights of the examples of batches [..., B] with targets `y` [..., B, ...].

    They add up to 1 for every batch, or are 0 if nothing in it counts.
    """
    weight = real.to(dtype)
    if goal.weigh is not None:
        weight = weight * goal.weigh(y.flatten(0, real.dim() - 1)).view(real.shape).to(dtype)
    return weight / weight.sum(-1, keepdim=True).clamp(min=torch.finfo(dtype).tiny)


def gather(
    data: Examples, rows: Tensor, real: Tensor, keys: Tensor, transform: Transform | None
) -> tuple[Tensor, Tensor]:
    """Inputs and targets of T batches [T, B, ...], of the examples at `rows` [T, B] as the transform makes them.

    `keys` [T] are the batches' own. One call transforms them all, unless the transform mixes examples; then alone is
    read which of them are `real` [T, B].
    """
    flat = rows.reshape(-1)
    x, y = data.x.index_select(0, flat), data.y.index_select(0, flat)
    if transform is not None:
        places = torch.arange(rows.shape[1], device=rows.device)
        own = absorb(absorb(keys, PLACE)[:, None], places).view(-1)
        x, y = _mixed(transform, x, y, own, real) if mixes(transform) else transform(x, y, own)
    return x.unflatten(0, rows.shape), y.unflatten(0, rows.shape)


def _mixed(transform: Transform, x: Tensor, y: Tensor, keys: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """The transform of each batch's real examples; padding becomes zeros.

    How much padding there is depends on the company in which a client is trained, and must change nothing.
    """
    real = real > 0
    flat = real.reshape(-1)
    parts = [value[flat].split(real.sum(1).tolist()) for value in (x, y, keys)]
    made = [transform(*part) for part in zip(*parts)]
    found = []
    for values in zip(*made):
        whole = torch.cat(values)
        found.append(whole.new_zeros(len(flat), *whole.shape[1:]))
        found[-1][flat] = whole
    return found[0], found[1]
