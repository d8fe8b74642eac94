"""Train only the part that was sent: the rest of the network does not exist on the client."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.local.rule import LocalRule
from fedloom.types import State, Task


@dataclass(frozen=True)
class SubModel(LocalRule):
    """Numbers outside the mask are zero and stay zero."""

    def start(self, task: Task, state: State, params: Tensor) -> Tensor:
        """The sent part of the model."""
        return params if task.mask is None else torch.where(task.mask, params, 0)

    def trains(self, task: Task) -> Tensor | None:
        """The mask."""
        return task.mask
