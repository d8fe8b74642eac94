"""Every client keeps a part of the network as its own model; what was sent overwrites some of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedloom.core.rule import LocalRule, Traits
from fedloom.core.types import Setting, State, Task
from fedloom.layout import flatten

if TYPE_CHECKING:
    from fedloom.method import Method


@dataclass(frozen=True)
class KeepOwnPart(LocalRule):
    """A client's network has the neurons it is told of (`keep`), trains all of them and outlives the round."""

    @property
    def traits(self) -> Traits:
        """The rest of the network is not there; what was not sent is the client's own."""
        return Traits(cuts=True, keeps_network=True)

    def clash(self, method: Method) -> str | None:
        """In a chain it would not be told what was sent."""
        return None if method.local == self else "KeepOwnPart works alone; take it out of the chain."

    def client_state(self, setting: Setting, model: Tensor) -> State:
        """The network as it was before the first round, and the neurons a client owns; all of them until it is told."""
        return {
            "own": flatten(setting.module, setting.layout).to(model.device),
            "keep": torch.ones(setting.neurons.size, dtype=torch.bool, device=model.device),
        }

    def start(self, task: Task, state: State, params: Tensor) -> Tensor:
        """The client's own model with what was sent written over it."""
        sent = task.extras.get("sent")
        params = params if sent is None else torch.where(sent, params, state["own"])
        return params if task.mask is None else torch.where(task.mask, params, 0)

    def trains(self, task: Task) -> Tensor | None:
        """All that the client owns."""
        return task.mask

    def finish(
        self, task: Task, state: State, first: Tensor, last: Tensor, steps: Tensor
    ) -> tuple[Tensor, State, State]:
        """The trained model is the client's own, whatever becomes of the reply."""
        own = last if task.mask is None else torch.where(task.mask, last, state["own"])
        return last, {}, {"own": own, "keep": state["keep"] if task.keep is None else task.keep}

    def personal(self, setting: Setting, model: Tensor, state: State) -> Tensor | None:
        """Its own part."""
        return torch.where(setting.neurons.expand(state["keep"]), state["own"], 0)
