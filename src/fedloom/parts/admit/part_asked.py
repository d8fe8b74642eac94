"""Which replies count? Those of the part that was asked for, or of no more than was allowed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedloom.core.cohort import place_of
from fedloom.core.types import Reply, Setting, Task
from fedloom.parts.admit.check import Check
from fedloom.parts.upload.as_sent import AsSent

if TYPE_CHECKING:
    from fedloom.method import Method

SLACK = 1e-6  # a share in single precision is meant as it is written


@dataclass(frozen=True)
class PartAsked(Check):
    """The numbers of the task's own mask, no more and no fewer; the client's copy of the mask is only compared.

    With `pieces` some may be missing, as where replies travel in pieces and some get lost.
    """

    pieces: bool = False

    @property
    def reason(self) -> str:
        """Another mask than was asked for."""
        return "mask"

    def clash(self, method: Method) -> str | None:
        """The server must know the mask."""
        if isinstance(method.upload, AsSent) and not method.local.traits.chooses:
            return None
        return "clients choose by themselves what they send; put WithinShare() there, which only counts it."

    def judge(self, setting: Setting, model: Tensor, task: Task, reply: Reply) -> tuple[Tensor, Reply]:
        """Where both are one and the same tensor there is nothing to compare."""
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
    """No more numbers than the client's share allows: of every matrix its share of rows, rounded up.

    Vectors, such as biases, and the output layer are never counted against it: some methods always send them.
    """

    @property
    def reason(self) -> str:
        """More of the model than was allowed."""
        return "share"

    def judge(self, setting: Setting, model: Tensor, task: Task, reply: Reply) -> tuple[Tensor, Reply]:
        """In all, not matrix by matrix: some rank all weights together."""
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
