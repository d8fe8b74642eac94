"""Staleness by steps and by numbers, and what is made of replies with it.

The staleness of a reply is the number of steps that were made since its client was sent the model, those without any
counted reply left out; 0 is fresh. The staleness of a number of it is how many of these steps moved that number: one
that nobody sent since then is fresh, however many steps others have made elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedloom.core.types import Reply, column

COUNT = torch.int16  # counts go round after 65,536 steps: only their differences are read
OLDEST = torch.iinfo(COUNT).max  # the largest difference that is told apart; all that is older counts as this old


def no_counts(model: Tensor) -> Tensor:
    """Counts of steps by number [P] before the first step."""
    return torch.zeros(len(model), dtype=COUNT, device=model.device)


def count_step(counts: Tensor, reply: Reply) -> Tensor:
    """Counts [P] after a step: one more where a reply that counted, as `take_replies` gives it, holds the number."""
    held = reply.arrived.any() if reply.mask is None else (reply.mask & reply.arrived[:, None]).any(0)
    return counts + held.to(COUNT)


def by_numbers(now: Tensor, then: Tensor, steps: Tensor) -> Tensor:
    """The staleness of each number [C, P], from counts now [P] and when the clients were sent the model [C, P].

    `steps` [C] is the staleness by steps, which no number exceeds.
    """
    return torch.where(column(steps, then) > OLDEST, OLDEST, now - then)


def as_change(model: Tensor, bases: Tensor, reply: Reply, given: Tensor | None) -> Reply:
    """The replies with what they changed put on the model: `x + (w - B)`, and `x` itself where the model is still `B`.

    `bases` are the models that the clients were sent, [C, P] or one [P] for all, and `given` [C, P] which numbers of
    them they got (None: all); of the others there is no change, and their `x` stays.
    """
    moved = reply.params + (model - bases)
    return reply._replace(params=moved if given is None else torch.where(given, moved, reply.params))


def factors(of: Callable[[Tensor], Tensor], staleness: Tensor, like: Tensor) -> Tensor:
    """The value of a function of staleness for each row [C] or number [C, P], in the dtype of `like`.

    On a CPU through a table: one value for equal staleness, and few evaluations.
    """
    if staleness.device.type != "cpu":
        return of(staleness.double()).to(like.dtype)
    most = int(staleness.max()) if staleness.numel() else 0
    return of(torch.arange(most + 1, dtype=torch.float64)).to(like.dtype)[staleness.int()]


def shrink(model: Tensor, reply: Reply, factor: Tensor) -> Reply:
    """The replies with their way from the model multiplied by `factor` [C] or [C, P]; where it is 1 nothing is done."""
    if factor.device.type == "cpu" and factor.dim() == 1:  # row by row, each of which stays in the processor's cache
        shrunk = torch.empty_like(reply.params)
        for own, new, by in zip(reply.params, shrunk, factor.tolist()):
            if by == 1:
                new.copy_(own)
            else:
                torch.sub(own, model, out=new).mul_(by).add_(model)
        return reply._replace(params=shrunk)
    factor = column(factor, reply.params) if factor.dim() == 1 else factor
    shrunk = (reply.params - model).mul_(factor).add_(model)
    return reply._replace(params=torch.where(factor == 1, reply.params, shrunk))
