"""How does a client train? A local rule: hooks around plain descent, on the client and on the server.

Client hooks work on a cohort's rows at once, `[C, P]`; a real device calls them with one row. The hooks as they stand
here are plain local descent from the global model, which is FedAvg.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.types import Batch, Reply, Setting, State, Task
from fedloom.errors import BadExperiment

if TYPE_CHECKING:
    from fedloom.method import Method


@dataclass(frozen=True)
class Traits:
    """What a local rule declares about its hooks, for engines and other parts to plan with."""

    corrects: bool = False  # `view` or `correct` does something; else a step may be fused into the backward pass
    scales: bool = False  # `view` and `correct` only multiply, by what `LocalRule.scales` returns
    cuts: bool = False  # only the sent part exists on the client, so engines may train a smaller network
    freezes: bool = False  # the whole network runs, and exactly the sent part of it is trained
    needs_whole: bool = False  # the client must have the whole network, whatever was sent
    keeps_network: bool = False  # a cut network lives on between rounds; `extras["sent"]` is the mask that came down
    chooses: bool = False  # the client chooses what to train: engines call `narrow`
    looks: int = 0  # how many of its own examples of each class the client chooses by; 0: none
    masks_classes: bool = False  # outputs of classes that a client has no example of are neither used nor trained
    judges: bool = False  # the client tests its model on examples it does not train on: engines call `judge`

    def __post_init__(self) -> None:
        for name, needs in (("scales", "corrects"), ("looks", "chooses")):
            if getattr(self, name) and not getattr(self, needs):
                raise BadExperiment(f"Traits has {name}={getattr(self, name)} but {needs}=False; set {needs}=True too.")

    def __or__(self, other: Traits) -> Traits:
        """The traits of two rules that work together; `Chain` takes `freezes` back where both restrict training."""
        correcting = [one for one in (self, other) if one.corrects]
        return Traits(
            corrects=bool(correcting),
            scales=bool(correcting) and all(one.scales for one in correcting),
            cuts=self.cuts or other.cuts,
            freezes=self.freezes or other.freezes,
            needs_whole=self.needs_whole or other.needs_whole,
            keeps_network=self.keeps_network or other.keeps_network,
            chooses=self.chooses or other.chooses,
            looks=max(self.looks, other.looks),
            masks_classes=self.masks_classes or other.masks_classes,
            judges=self.judges or other.judges,
        )


@dataclass(frozen=True)
class LocalRule:
    """How clients train, and what both ends remember of it."""

    @property
    def traits(self) -> Traits:
        """What this rule declares about its hooks."""
        return Traits()

    def members(self) -> tuple[LocalRule, ...]:
        """The rule, and those it is made of."""
        return (self,)

    def defining(self, hook: str) -> tuple[LocalRule, ...]:
        """The single rules in this one that define a hook themselves, such as `debrief`."""
        single = (rule for rule in self.members() if len(rule.members()) == 1)
        return tuple(rule for rule in single if getattr(type(rule), hook) is not getattr(LocalRule, hook))

    def clash(self, method: Method) -> str | None:
        """Why this rule cannot work in that method; None: it can."""
        return None

    # on the client
    def client_state(self, setting: Setting, model: Tensor) -> State:
        """One client's state at its first contact, given the model it is sent [P]."""
        return {}

    def narrow(
        self, setting: Setting, ids: Tensor, task: Task, state: State, look: Iterable[Batch], chance: Chance
    ) -> tuple[Tensor | None, State]:
        """The numbers each client chooses to train [C, P] of those it was sent, and its state; only if it `chooses`."""
        return task.mask, state

    def start(self, task: Task, state: State, params: Tensor) -> Tensor:
        """The weights to begin from [C, P]; `params` is what came down."""
        return params

    def trains(self, task: Task) -> Tensor | None:
        """Which numbers may move [C, P]; None: all."""
        return None

    def view(self, task: Task, params: Tensor) -> Tensor:
        """The weights that run forward [C, P]; `correct` must then bring gradients back to `params`."""
        return params

    def scales(self, task: Task, at: Tensor, dtype: torch.dtype) -> Tensor | None:
        """What numbers at some places [R] run multiplied by [C, R], if `view` and `correct` do no more; None: they do.

        It is the same for a whole row of a tensor, all that leads into a neuron: engines ask for one number of each.
        """
        return None

    def correct(self, task: Task, state: State, first: Tensor, params: Tensor, grads: Tensor) -> Tensor:
        """The gradients to follow [C, P]; `first` is what the client started from."""
        return grads

    def finish(
        self, task: Task, state: State, first: Tensor, last: Tensor, steps: Tensor
    ) -> tuple[Tensor, State, State]:
        """What to send [C, P], extras to send along, and the new state; `steps` [C] were taken."""
        return last, {}, state

    def judge(self, task: Task, state: State, training: Tensor, held_out: Tensor) -> tuple[State, State]:
        """Columns for the report [C each] and the state, from mean losses [C]; only if it `judges`.

        `held_out` is of the trained model on examples kept back, NaN where a client has none.
        """
        return {}, state

    def personal(self, setting: Setting, model: Tensor, state: State) -> Tensor | None:
        """The clients' own models [C, P]; None: the global one serves everybody."""
        return None

    # on the server
    def server_state(self, setting: Setting, model: Tensor) -> State:
        """The memory before the first round."""
        return {}

    def brief(self, memory: State, setting: Setting, ids: Tensor) -> State:
        """Extras for each of the cohort [C, ...]; expand what all share."""
        return {}

    def debrief(self, memory: State, setting: Setting, old: Tensor, new: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """The model after aggregation, adjusted, and the new memory."""
        return new, memory
