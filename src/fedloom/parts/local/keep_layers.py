"""Local: clients keep some layers to themselves, and train them together with those that they are sent."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedloom.core.layers import layers_of
from fedloom.core.rule import LocalRule, Traits
from fedloom.core.types import Setting, State, Task
from fedloom.layout import flatten


@dataclass(frozen=True)
class KeepLayers(LocalRule):
    """A client's own numbers of the layers that `private` names; its personal model is the current one with them.

    The state holds these numbers alone. Before its first round a client has those of the initial network.
    """

    private: str = "head"

    @property
    def traits(self) -> Traits:
        """The whole network runs, and the server has no more than a part of it."""
        return Traits(needs_whole=True, personal=True, splits=self.private != "none", norms="norms" in self.private)

    def constants(self, setting: Setting) -> State:
        """The places of the private numbers."""
        return {"private": layers_of(setting).numbers(self.private).nonzero().flatten()}

    def client_state(self, setting: Setting, model: Tensor) -> State:
        """The initial network's private numbers, which every client can build, whenever it first takes part."""
        initial = flatten(setting.module, setting.layout).to(model)
        return {"own": initial[layers_of(setting).numbers(self.private).to(model.device)]}

    def start(self, task: Task, state: State, params: Tensor) -> Tensor:
        """The model that was sent, with the client's own numbers written over it."""
        return params if self.private == "none" else params.scatter(1, task.extras["private"], state["own"])

    def finish(
        self, task: Task, state: State, first: Tensor, last: Tensor, steps: Tensor
    ) -> tuple[Tensor, State, State]:
        """Keep what the private numbers became, whether the reply arrives or not."""
        return last, {}, {"own": last.gather(1, task.extras["private"])}

    def personal(self, setting: Setting, model: Tensor, state: State) -> Tensor | None:
        """The current model with the clients' own numbers."""
        own = model.expand(len(state["own"]), -1).clone()
        own[:, layers_of(setting).numbers(self.private)] = state["own"]
        return own
