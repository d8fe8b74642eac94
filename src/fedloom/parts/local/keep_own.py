"""Every client keeps a whole model of its own; what was sent overwrites its part of it."""

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
        """The network as it was before the first round: every client can build it, whenever it is met first."""
        return {"own": flatten(setting.module, setting.layout).to(model.device)}

    def start(self, task: Task, state: State, params: Tensor) -> Tensor:
        """The client's own model with what was sent written over it."""
        return params if task.mask is None else torch.where(task.mask, params, state["own"])

    def trains(self, task: Task) -> Tensor | None:
        """The mask, if the rest is frozen."""
        return task.mask if self.freeze else None

    def finish(
        self, task: Task, state: State, first: Tensor, last: Tensor, steps: Tensor
    ) -> tuple[Tensor, State, State]:
        """The trained model is the client's own, whatever becomes of the reply."""
        return last, {}, {"own": last}

    def personal(self, setting: Setting, model: Tensor, state: State) -> Tensor | None:
        """Its own."""
        return state["own"]
