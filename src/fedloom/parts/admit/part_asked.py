"""Admit: replies with the mask that was asked for, or with no more numbers than the share allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedloom.core.cohort import place_of
from fedloom.core.types import Reply, Setting, Task
from fedloom.parts.admit.check import Check

if TYPE_CHECKING:
    from fedloom.method import Method

SLACK = 1e-6  # shares in single precision are a little off their decimal values


@dataclass(frozen=True)
class PartAsked(Check):
    """Exactly the numbers of the task's mask; the client's copy of the mask is only compared with it.

    With `pieces` some numbers may be missing, as when replies travel in pieces and some get lost.
    """

    pieces: bool = False

    @property
    def reason(self) -> str:
        """The reason for another mask than was asked for."""
        return "mask"

    def clash(self, method: Method) -> str | None:
        """Refuse methods in which the server does not know the mask."""
        if method.masks_known:
            return None
        return "clients choose by themselves what they send; put WithinShare() there, which only counts it."

    def judge(self, setting: Setting, model: Tensor, task: Task, reply: Reply) -> tuple[Tensor, Reply]:
        """Compare masks; there is nothing to do where both are the same tensor."""
        if reply.mask is task.mask:
            return torch.zeros_like(reply.arrived), reply
        everything = torch.ones((), dtype=torch.bool, device=model.device).expand(len(reply.ids), len(model))
        asked = everything
        if task.mask is not None:
            assert task.ids is not None
            asked = task.mask[place_of(reply.ids, task.ids)[0]]
        sent = everything if reply.mask is None else reply.mask
        wrong = sent & ~asked if self.pieces else sent != asked
        return wrong.any(1), reply


@dataclass(frozen=True)
class WithinShare(Check):
    """At most as many numbers as the client's share allows: its share of the rows of every matrix, rounded up.

    Vectors, such as biases, and the output layer are always allowed: some methods always send them.
    """

    @property
    def reason(self) -> str:
        """The reason for more of the model than was allowed."""
        return "share"

    def judge(self, setting: Setting, model: Tensor, task: Task, reply: Reply) -> tuple[Tensor, Reply]:
        """Count over all matrices together, since some methods rank all weights together."""
        share = task.share
        if task.ids is not None:
            share = share[place_of(reply.ids, task.ids)[0]]
        layout = setting.layout
        last = max((at for at, shape in enumerate(layout.shapes) if len(shape) > 1), default=-1)
        most = torch.zeros_like(share, dtype=torch.float64)
        for at, (shape, size) in enumerate(zip(layout.shapes, layout.sizes)):
            counts = len(shape) > 1 and at != last
            rows = (share.double() * shape[0] * (1 - SLACK)).ceil() if counts else most.new_ones(()) * size
            most = most + rows * (size // shape[0] if counts else 1)
        count = torch.full_like(reply.ids, len(model)) if reply.mask is None else reply.mask.sum(1)
        return count > most, reply
