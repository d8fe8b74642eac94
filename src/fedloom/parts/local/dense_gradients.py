"""Local: only the numbers sent run, and gradients of all numbers are summed over a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedloom.core.rule import LocalRule, Traits
from fedloom.core.types import Setting, State, Task
from fedloom.parts.local.drift import trained_only

if TYPE_CHECKING:
    from fedloom.method import Method


@dataclass(frozen=True)
class DenseGradients(LocalRule):
    """Numbers that were not sent run as 0 but move by their gradients, so that a round's change tells their sum.

    A client adds up the squares of these sums, round by round, and sends them as `squares` in every `every`-th round.
    """

    every: int = 10

    @property
    def traits(self) -> Traits:
        """Gradients of the whole network are taken."""
        return Traits(corrects=True, needs_whole=True)

    def clash(self, method: Method) -> str | None:
        """Refuse steps from which gradients cannot be read, and rounds that are not everybody's."""
        if not method.optimiser.plain or method.optimiser.weight_decay:
            return "it reads gradients from weights, which needs SGD without momentum, clipping and weight decay."
        if method.local != self:
            return "its reports reach the mask only if it stands alone; take it out of the chain."
        if not method.pace.barrier:
            return "clients report in rounds that are the same for all; leave pace out."
        return None

    def client_state(self, setting: Setting, model: Tensor) -> State:
        """No squares yet, and the number of the last report."""
        return {"squares": torch.zeros_like(model), "reports": torch.zeros((), dtype=torch.int64, device=model.device)}

    def start(self, task: Task, state: State, params: Tensor) -> Tensor:
        """The numbers sent; the others are 0."""
        return params if task.mask is None else torch.where(task.mask, params, 0)

    def view(self, task: Task, params: Tensor) -> Tensor:
        """The numbers sent."""
        return params if task.mask is None else torch.where(task.mask, params, 0)

    def finish(
        self, task: Task, state: State, first: Tensor, last: Tensor, steps: Tensor
    ) -> tuple[Tensor, State, State]:
        """Add this round's squares, and send them if it is the round for it."""
        period = (task.round - 1) // self.every
        known = torch.where(state["reports"][:, None] == period, state["squares"], 0)  # others were reported by others
        squares = known + trained_only((first - last) / task.rate, task.trained).square()
        kept = {"squares": squares, "reports": torch.full_like(state["reports"], period)}
        sent = last if task.mask is None else torch.where(task.mask, last, 0)
        return sent, {"squares": squares} if task.round % self.every == 0 else {}, kept
