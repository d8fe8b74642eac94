"""Admit: replies whose size is not far above that of the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.part import Admit
from fedloom.core.refused import refuse
from fedloom.core.types import Reply, Setting, State, Task
from fedloom.errors import BadExperiment

TIMES = 30.0  # how often honest clients exceed it is in docs/explanation-hygiene.md
WIDER = 10.0  # extras of honest clients differ more than their updates do
FEWEST = 5  # sizes that a median is taken of; with fewer replies medians of earlier rounds fill up
NUMBERS = 2**24  # of differences that are computed at a time


@dataclass(frozen=True)
class Relative(Admit):
    """A reply's size is at most `times` the median of the cohort's, or that of the model itself; others are refused.

    A size is the root mean square over the numbers that were sent: of the change of trained numbers, of the change of
    running statistics, and of every extra of floating point, which may be 10 times wider. Each is compared with its
    own median, so that replies that sent different parts are compared fairly. A change that is no larger than the
    model's own numbers is never refused: where most clients have learnt all they can, the median is near 0.

    The median is the lower one of an even number, and is taken of sizes above 0. With fewer than five replies, medians
    of the last rounds' admitted replies fill up to five: one or two replies are judged by the rounds before, and three
    that agree decide. The very first reply alone has nothing to be compared with, and of the first two the shorter is
    the measure.
    """

    times: float = TIMES

    def __post_init__(self) -> None:
        if not self.times >= 1:
            raise BadExperiment(
                f"times (the median size, up to which replies count) is {self.times}; it is at least 1."
            )

    @property
    def learns(self) -> bool:
        """Whether a reply counts depends on the others."""
        return True

    def init(self, setting: Setting, model: Tensor) -> State:
        """No median is known; they are infinite."""
        return {"medians": model.new_full((FEWEST - 1, 0), torch.inf)}

    def __call__(self, memory: State, setting: Setting, model: Tensor, task: Task, reply: Reply) -> tuple[Reply, State]:
        """Refuse long replies, and remember the median size of the others."""
        found, floor = sizes(setting, model, reply)
        past = memory["medians"]
        if past.shape[1] != found.shape[1]:  # the first replies: only now is it known which extras there are
            past = found.new_full((FEWEST - 1, found.shape[1]), torch.inf)
        wider = torch.where(floor > 0, 1.0, WIDER)
        bound = (self.times * wider * medians(found, reply.arrived, past)).maximum(floor)
        within = (found <= bound) & (found < torch.inf)  # not so for NaN
        reply = refuse(model, reply, ~within.all(1), "norm", read=True)
        now = medians(found, reply.arrived, past[:0])
        return reply, {"medians": torch.where(now < torch.inf, torch.cat([now[None], past[:-1]]), past)}


def sizes(setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, Tensor]:
    """Root mean squares of each reply [C, kinds], of changes and of extras, and of the model [kinds], 0 for extras."""
    trained, total = setting.layout.trained, setting.layout.total
    found, floor = [], []
    for span in (slice(0, trained), slice(trained, total)):
        if span.start < span.stop:
            mask = None if reply.mask is None else reply.mask[:, span]
            found.append(_root_mean_squares(reply.params[:, span], mask, model[span]))
            floor.append(model[span].square().mean().sqrt())
    for value in reply.extras.values():
        if value.is_floating_point():
            mask = reply.mask if value.shape == reply.params.shape else None
            found.append(_root_mean_squares(value.reshape(len(value), -1), mask))
            floor.append(model.new_zeros(()))
    return torch.stack([each.to(model.dtype) for each in found], 1), torch.stack(floor)


def _root_mean_squares(values: Tensor, mask: Tensor | None, base: Tensor | None = None) -> Tensor:
    """The root mean square over the numbers sent [C]; of those not sent the values equal the base, or are 0."""
    squares = torch.cat([_norms(part, base).square() for part in _parts(values)])
    count = values.shape[1] if mask is None else mask.sum(1).clamp(min=1)
    return (squares / count).sqrt()


def _norms(values: Tensor, base: Tensor | None) -> Tensor:
    """The l2 norms of rows [C]."""
    return torch.linalg.vector_norm(values if base is None else values - base, dim=1)  # type: ignore[no-any-return]


def _parts(values: Tensor) -> Iterator[Tensor]:
    """Some rows at a time, whose differences take little memory."""
    yield from values.split(max(1, NUMBERS // max(1, values.shape[1])))


def medians(found: Tensor, arrived: Tensor, past: Tensor) -> Tensor:
    """The lower medians of sizes above 0 [kinds], filled up with the latest of `past`; infinite where there is none."""
    own = torch.where(arrived[:, None] & (found > 0), found, torch.inf)  # NaN is not above 0
    room = FEWEST - (own < torch.inf).sum(0)
    order = torch.arange(len(past), device=found.device)[:, None]
    pool = torch.cat([own, torch.where(order < room, past, torch.inf)]).sort(0).values
    middle = ((pool < torch.inf).sum(0) - 1).clamp(min=0) // 2
    return pool.gather(0, middle[None])[0]
