"""Local: every client keeps a part of the network as its own model, in which numbers it is sent are overwritten."""

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
    """A client's network has the neurons in `task.keep`, trains all of them and is kept between rounds."""

    @property
    def traits(self) -> Traits:
        """The rest of the network is not on the client; numbers not sent are its own."""
        return Traits(cuts=True, keeps_network=True)

    def clash(self, method: Method) -> str | None:
        """Refuse chains, in which `extras["sent"]` would not reach this rule."""
        return None if method.local == self else "KeepOwnPart works alone; take it out of the chain."

    def client_state(self, setting: Setting, model: Tensor) -> State:
        """The initial network, and the neurons that the client owns: all of them before its first task."""
        return {
            "own": flatten(setting.module, setting.layout).to(model.device),
            "keep": torch.ones(setting.neurons.size, dtype=torch.bool, device=model.device),
        }

    def start(self, task: Task, state: State, params: Tensor) -> Tensor:
        """The client's own model with the numbers sent written over it."""
        sent = task.extras.get("sent")
        params = params if sent is None else torch.where(sent, params, state["own"])
        return params if task.mask is None else torch.where(task.mask, params, 0)

    def trains(self, task: Task) -> Tensor | None:
        """All numbers that the client owns."""
        return task.mask

    def finish(
        self, task: Task, state: State, first: Tensor, last: Tensor, steps: Tensor
    ) -> tuple[Tensor, State, State]:
        """Keep the trained model as the client's own, whether the reply arrives or not."""
        own = last if task.mask is None else torch.where(task.mask, last, state["own"])
        return last, {}, {"own": own, "keep": state["keep"] if task.keep is None else task.keep}

    def personal(self, setting: Setting, model: Tensor, state: State) -> Tensor | None:
        """The client's own part; zero elsewhere."""
        return torch.where(setting.neurons.expand(state["keep"]), state["own"], 0)
