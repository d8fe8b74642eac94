"""Local: sparse training by clients that change their masks themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedloom.core.rule import LocalRule, Traits
from fedloom.core.sparsity import Sparsity, exchanged, numbered, places_in
from fedloom.core.types import Setting, State, Task

if TYPE_CHECKING:
    from fedloom.method import Method


@dataclass(frozen=True)
class Regrow(LocalRule):
    """Sparse training; in rounds with a change the smallest weights give way to those of the highest gradients."""

    sparsity: Sparsity = Sparsity(density=0.2)

    @property
    def traits(self) -> Traits:
        """The rest of the model is zero on the client."""
        return Traits(cuts=True)

    def clash(self, method: Method) -> str | None:
        """Refuse company that would not see the client's own mask."""
        if method.local != self or method.upload.sends_what_came:
            return "the upload must see its mask; leave it alone in local, and put OwnMask() into upload."
        if not method.pace.barrier:
            return "clients change masks in rounds that are the same for all; leave pace out."
        return None

    def client_state(self, setting: Setting, model: Tensor) -> State:
        """The mask that the client had last."""
        return {"mask": torch.ones_like(model, dtype=torch.bool)}

    def brief(self, memory: State, setting: Setting, ids: Tensor) -> State:
        """The tensor of weights of each number [C, P], which clients know."""
        return {"tensors": numbered(setting.layers, setting.layout.total, ids.device).expand(len(ids), -1)}

    def start(self, task: Task, state: State, params: Tensor) -> Tensor:
        """The sent part of the model."""
        return params if task.mask is None else torch.where(task.mask, params, 0)

    def trains(self, task: Task) -> Tensor | None:
        """The mask."""
        return task.mask

    def probes(self, task: Task) -> bool:
        """In rounds with a change."""
        return self.sparsity.adjusts(task.round)

    def probed(self, task: Task, state: State, last: Tensor, grads: Tensor) -> State:
        """Change the mask."""
        if task.mask is None:
            return state
        part, places = self.sparsity.part(task.round), places_in(task.extras["tensors"][0])
        return {"changed": exchanged(last, task.mask, grads, places, part)}

    def finish(
        self, task: Task, state: State, first: Tensor, last: Tensor, steps: Tensor
    ) -> tuple[Tensor, State, State]:
        """Send what the client has now; what is new is 0."""
        if task.mask is None:
            return last, {}, {"mask": torch.ones_like(last, dtype=torch.bool)}
        mask = state.get("changed", task.mask)
        return torch.where(mask & task.mask, last, 0), {}, {"mask": mask}
