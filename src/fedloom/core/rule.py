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

if TYPE_CHECKING:
    from fedloom.method import Method


@dataclass(frozen=True)
class LocalRule:
    """How clients train, and what both ends remember of it."""

    @property
    def corrects(self) -> bool:
        """Does `correct` change gradients? If not, engines may fuse the step into the backward pass."""
        return False

    @property
    def scaled(self) -> bool:
        """Do `view` and `correct` only multiply, by what `scales` says?"""
        return False

    @property
    def cuts(self) -> bool:
        """Does only the sent part exist on the client? Then engines may train a really smaller network."""
        return False

    @property
    def whole(self) -> bool:
        """Does the rule need the whole network on the client, whatever was sent?"""
        return False

    @property
    def keeps(self) -> bool:
        """Does a cut network live on between rounds? Then `extras["sent"]` says which of its numbers came down."""
        return False

    @property
    def looks(self) -> int | None:
        """Does a client choose by itself what to train? Then it sees so many of its own examples per class before."""
        return None

    @property
    def judges(self) -> bool:
        """Does a client try its model on examples of its own that it does not train on?"""
        return False

    def members(self) -> tuple[LocalRule, ...]:
        """The rule, and those it is made of."""
        return (self,)

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
        """The numbers each client chooses to train [C, P] of those it was sent, and its state; only if it `looks`."""
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
