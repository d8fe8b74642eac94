"""Local: some layers are never trained, and stay those of the initial network."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.layers import layers_of
from fedloom.core.rule import LocalRule, Traits
from fedloom.core.types import Setting, State, Task
from fedloom.layout import flatten


@dataclass(frozen=True)
class FreezeLayers(LocalRule):
    """The numbers of the layers that `layers` names are those that every client can build, and need not be sent."""

    layers: str = "head"

    @property
    def traits(self) -> Traits:
        """The whole network runs."""
        return Traits(needs_whole=True)

    def constants(self, setting: Setting) -> State:
        """Which numbers are trained, and the initial network for the others."""
        frozen = layers_of(setting).numbers(self.layers)
        return {"trained": ~frozen, "initial": flatten(setting.module, setting.layout).to(frozen.device)}

    def start(self, task: Task, state: State, params: Tensor) -> Tensor:
        """The model that was sent, with the initial numbers in the frozen layers."""
        return torch.where(task.extras["trained"], params, task.extras["initial"])

    def trains(self, task: Task) -> Tensor | None:
        """All but the frozen layers."""
        return task.extras["trained"]
