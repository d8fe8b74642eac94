"""Local: weight decay of some numbers only, such as of all but biases."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.layers import layers_of
from fedloom.core.rule import LocalRule, Traits
from fedloom.core.types import Setting, State, Task
from fedloom.errors import BadExperiment


@dataclass(frozen=True)
class DecaySome(LocalRule):
    """Adds `rate * w` to the gradients of the numbers that `layers` names."""

    rate: float = 1e-4
    layers: str = "all-biases"

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise BadExperiment(f"rate (of weight decay) is {self.rate}; it must not be negative.")

    @property
    def traits(self) -> Traits:
        """Gradients are corrected."""
        return Traits(corrects=True)

    def constants(self, setting: Setting) -> State:
        """Which numbers decay."""
        return {"decays": layers_of(setting).numbers(self.layers)}

    def correct(self, task: Task, state: State, first: Tensor, params: Tensor, grads: Tensor) -> Tensor:
        """The gradient of `rate / 2 * ||w||^2` over these numbers."""
        return torch.where(task.extras["decays"], grads.add(params, alpha=self.rate), grads)
