"""Local: clients train only the part they were sent; the rest of the network does not exist there."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.rule import LocalRule, Traits
from fedloom.core.types import Setting, State, Task


@dataclass(frozen=True)
class SubModel(LocalRule):
    """Numbers outside the mask are zero and stay zero; a personal model is the global one cut to the last neurons.

    `own_part` False: clients remember no neurons, and a personal model is the whole global one, which suits masks of
    single numbers.
    """

    own_part: bool = True

    @property
    def traits(self) -> Traits:
        """The rest of the network is not on the client."""
        return Traits(cuts=True)

    def client_state(self, setting: Setting, model: Tensor) -> State:
        """The neurons that a client was sent last; all of them before its first round."""
        if not self.own_part:
            return {}
        return {"keep": torch.ones(setting.neurons.size, dtype=torch.bool, device=model.device)}

    def start(self, task: Task, state: State, params: Tensor) -> Tensor:
        """The sent part of the model."""
        return params if task.mask is None else torch.where(task.mask, params, 0)

    def trains(self, task: Task) -> Tensor | None:
        """The mask."""
        return task.mask

    def finish(
        self, task: Task, state: State, first: Tensor, last: Tensor, steps: Tensor
    ) -> tuple[Tensor, State, State]:
        """Remember the neurons of this task."""
        return last, {}, state if task.keep is None or not self.own_part else {"keep": task.keep}

    def personal(self, setting: Setting, model: Tensor, state: State) -> Tensor | None:
        """The global model cut to the neurons that the client was sent last."""
        if not self.own_part:
            return None
        return torch.where(setting.neurons.expand(state["keep"]), model, 0)
