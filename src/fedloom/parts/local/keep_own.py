"""Local: every client keeps a whole model of its own, in which the numbers it is sent are overwritten."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.rule import LocalRule, Traits
from fedloom.core.types import Setting, State, Task
from fedloom.layout import flatten


@dataclass(frozen=True)
class KeepOwn(LocalRule):
    """The whole network runs; with `freeze` only what was sent is trained."""

    freeze: bool = False

    @property
    def traits(self) -> Traits:
        """The client's own network runs as a whole, whatever part of it is trained."""
        return Traits(needs_whole=True, freezes=self.freeze)

    def client_state(self, setting: Setting, model: Tensor) -> State:
        """The initial network, which every client can build, whenever it first takes part."""
        return {"own": flatten(setting.module, setting.layout).to(model.device)}

    def start(self, task: Task, state: State, params: Tensor) -> Tensor:
        """The client's own model with the numbers sent written over it."""
        return params if task.mask is None else torch.where(task.mask, params, state["own"])

    def trains(self, task: Task) -> Tensor | None:
        """The mask if the rest is frozen, else all."""
        return task.mask if self.freeze else None

    def finish(
        self, task: Task, state: State, first: Tensor, last: Tensor, steps: Tensor
    ) -> tuple[Tensor, State, State]:
        """Keep the trained model as the client's own, whether the reply arrives or not."""
        return last, {}, {"own": last}

    def personal(self, setting: Setting, model: Tensor, state: State) -> Tensor | None:
        """The clients' own models."""
        return state["own"]
