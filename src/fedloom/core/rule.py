"""The contract of local rules: hooks around plain local descent, on the client and on the server.

Client hooks work on the rows of a whole cohort at once, [C, P]; a real device calls them with one row. The hooks of
`LocalRule` itself are plain local descent from the global model, which is FedAvg.

Shapes: N clients in the fleet, C in the cohort, P numbers in the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.types import Batch, Reply, Setting, State, Task
from fedloom.errors import BadExperiment

if TYPE_CHECKING:
    from fedloom.core.goal import Loss
    from fedloom.method import Method


Descend = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Traits:
    """What a local rule declares about its hooks, so that engines and other parts can plan with it."""

    corrects: bool = False  # `view` or `correct` changes anything; else steps may be fused into the backward pass
    scales: bool = False  # `view` and `correct` only multiply, by what `LocalRule.scales` returns
    aims: bool = False  # clients minimise `LocalRule.objective`, not the goal's loss
    turns: bool = False  # which numbers are trained depends on the pass over the data: engines call `turn`
    shifts: bool = False  # `correct` only adds what `LocalRule.shift` returns
    cuts: bool = False  # only the part sent exists on the client, so engines may train a smaller network
    freezes: bool = False  # the whole network runs, and exactly the part sent is trained
    needs_whole: bool = False  # the client must have the whole network, whatever part is sent
    keeps_network: bool = False  # a cut network is kept between rounds; `extras["sent"]` is the mask sent down
    chooses: bool = False  # clients choose what to train: engines call `narrow`
    looks: int = 0  # examples of each of its classes that a client chooses by; 0: it chooses without data
    masks_classes: bool = False  # outputs of classes that a client has no example of are neither used nor trained
    reads_model: bool = False  # hooks of training read `task.model`, so runs with other models train by themselves
    personal: bool = False  # what comes of it is a model for each client, which runs try on examples kept back for it
    splits: bool = False  # the server's model lacks layers that clients keep to themselves, and is no model alone
    norms: bool = False  # it is about norm layers, which not every network has
    evolves: bool = False  # what hooks do changes from step to step: engines call `aside` and `after`
    moves_model: bool = False  # `debrief` changes the model, by more than what clients changed of it
    judges: bool = False  # clients test their models on held-out examples: engines call `judge`

    def __post_init__(self) -> None:
        for name, needs in (
            *(("scales", "corrects"), ("shifts", "corrects"), ("turns", "corrects"), ("aims", "corrects")),
            ("evolves", "corrects"),
            ("looks", "chooses"),
        ):
            if getattr(self, name) and not getattr(self, needs):
                raise BadExperiment(f"Traits has {name}={getattr(self, name)} but {needs}=False; set {needs}=True too.")

    def __or__(self, other: Traits) -> Traits:
        """The traits of two rules together; `Chain` clears `freezes` where both restrict training."""
        correcting = [one for one in (self, other) if one.corrects]
        return Traits(
            corrects=bool(correcting),
            scales=bool(correcting) and all(one.scales for one in correcting),
            turns=self.turns or other.turns,
            aims=self.aims or other.aims,
            shifts=bool(correcting) and all(one.shifts for one in correcting),
            cuts=self.cuts or other.cuts,
            freezes=self.freezes or other.freezes,
            needs_whole=self.needs_whole or other.needs_whole,
            keeps_network=self.keeps_network or other.keeps_network,
            chooses=self.chooses or other.chooses,
            looks=max(self.looks, other.looks),
            masks_classes=self.masks_classes or other.masks_classes,
            reads_model=self.reads_model or other.reads_model,
            personal=self.personal or other.personal,
            splits=self.splits or other.splits,
            norms=self.norms or other.norms,
            evolves=self.evolves or other.evolves,
            moves_model=self.moves_model or other.moves_model,
            judges=self.judges or other.judges,
        )


class Objective(NamedTuple):
    """What clients minimise in place of the goal's loss."""

    # one client's loss: (outputs [B, ...], targets [B, ...], weight [B], its facts) -> []; weights add up to 1
    loss: Callable[..., Tensor]
    facts: tuple[Tensor, ...]  # [C, ...] each: what differs from client to client


@dataclass(frozen=True)
class Shift:
    """What a rule adds to the gradients of all steps of a round: `pull * (w - w_start) + push`.

    It is exactly zero where `w` is the start and nothing is pushed.
    """

    pull: Tensor | float = 0.0  # [C, 1], or a number for all
    push: Tensor | None = None  # [C, P]

    @property
    def pulls(self) -> bool:
        """Whether anything is pulled, as far as the host knows."""
        return isinstance(self.pull, Tensor) or self.pull != 0

    def rows(self, keep: slice | Tensor) -> Shift:
        """What is added for some clients of the cohort."""
        pull, push = self.pull, self.push
        return Shift(pull[keep] if isinstance(pull, Tensor) else pull, None if push is None else push[keep])

    def added(self, first: Tensor, params: Tensor, grads: Tensor) -> Tensor:
        """The gradients to follow [C, P], at `params`, of clients that started from `first`."""
        if self.pulls:
            grads = grads + self.pull * (params - first)
        return grads if self.push is None else grads + self.push

    def __add__(self, other: Shift) -> Shift:
        """Both together."""
        pushes = [one for one in (self.push, other.push) if one is not None]
        return Shift(self.pull + other.pull, sum(pushes[1:], pushes[0]) if pushes else None)


@dataclass(frozen=True)
class LocalRule:
    """How clients train, and the state of clients and memory of the server for it."""

    @property
    def traits(self) -> Traits:
        """What this rule declares about its hooks."""
        return Traits()

    @property
    def twin(self) -> LocalRule | None:
        """How clients train a model of their own on the same batches, after the one that they send.

        Its hooks find the parameters that came down as `task.extras["sent"]`, and `finish` finds the trained own model
        as `task.extras["own"]`.
        """
        return None

    @property
    def passes(self) -> int:
        """How many models a client trains in a round."""
        return 1 if self.twin is None else 2

    @property
    def tunes(self) -> Tuning | None:
        """How a client's model is trained further before it is tried; None: it is not."""
        return None

    def members(self) -> tuple[LocalRule, ...]:
        """This rule and the rules it is made of."""
        return (self,)

    def defining(self, hook: str) -> tuple[LocalRule, ...]:
        """The single rules in this one that define a hook of their own, such as `debrief`."""
        single = (rule for rule in self.members() if len(rule.members()) == 1)
        return tuple(rule for rule in single if getattr(type(rule), hook) is not getattr(LocalRule, hook))

    @property
    def only_shifts(self) -> bool:
        """Whether `shift` says all that becomes of gradients: no rule in this one has its own `correct` or `view`."""
        return self.traits.shifts and not self.defining("correct") and not self.defining("view")

    def clash(self, method: Method) -> str | None:
        """Why this rule cannot work in `method`, as a sentence; None if it can."""
        return None

    # ---- on the client
    def client_state(self, setting: Setting, model: Tensor) -> State:
        """The state of one client when it first takes part, given the global model [P]."""
        return {}

    def constants(self, setting: Setting) -> State:
        """Return what hooks find in `task.extras` besides what was sent, one row for all clients; no message has it."""
        return {}

    def narrow(
        self, setting: Setting, ids: Tensor, task: Task, state: State, look: Iterable[Batch], chance: Chance
    ) -> tuple[Tensor | None, State]:
        """Return which of the numbers sent each client chooses to train [C, P], and its state; only if `chooses`."""
        return task.mask, state

    def start(self, task: Task, state: State, params: Tensor) -> Tensor:
        """Return the weights to start from [C, P]; `params` are the weights sent down."""
        return params

    def trains(self, task: Task) -> Tensor | None:
        """Return which numbers are trained [C, P]; None means all."""
        return None

    def objective(self, task: Task, loss: Loss) -> Objective | None:
        """Return what clients minimise, given the goal's loss; None: that loss. Only if `aims`."""
        return None

    def turn(self, task: Task, state: State, epoch: Tensor) -> Tensor | None:
        """Return which numbers each client trains in its pass number `epoch` [C] (from 0) [C, P]; only if `turns`."""
        return self.trains(task)

    def view(self, task: Task, params: Tensor) -> Tensor:
        """Return the weights of the forward pass [C, P]; `correct` must then map gradients back to `params`."""
        return params

    def scales(self, task: Task, at: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Return the factors [C, R] by which `view` multiplies the numbers at places `at` [R]; None if it does more.

        The factor must be equal for all numbers that lead into one neuron: engines ask for one of them.
        """
        return None

    def shift(self, task: Task, state: State, first: Tensor) -> Shift:
        """Return what is added to the gradients of every step of the round; only if `shifts`."""
        return Shift()

    def correct(self, task: Task, state: State, first: Tensor, params: Tensor, grads: Tensor) -> Tensor:
        """Return the gradients to follow [C, P]; `first` are the weights that the client started from."""
        return self.shift(task, state, first).added(first, params, grads) if self.traits.shifts else grads

    def probes(self, task: Task) -> bool:
        """Whether, in this round, engines take one more gradient after the last step and call `probed`."""
        return False

    def probed(self, task: Task, state: State, last: Tensor, grads: Tensor) -> State:
        """Return the state for `finish`, given gradients of all numbers [C, P] at the trained weights `last`.

        They are of one batch of each client's own, through `view`; `finish` must drop what a state has not at rest.
        """
        return state

    def aside(self, task: Task, state: State, first: Tensor, steps: Tensor) -> State:
        """Return numbers beside the model [C, ...] before the first of `steps` [C] steps; only if `evolves`.

        Hooks find them, as they are at each step and in the end, in `task.extras`.
        """
        return {}

    def after(self, task: Task, state: State, params: Tensor, gradient: Descend) -> State:
        """Return them after a step that led to `params` [C, P]; only if `evolves`.

        `gradient` gives the gradients [C, P] of the step's batch at any weights [C, P], whose statistics then move.
        """
        return {}

    def finish(
        self, task: Task, state: State, first: Tensor, last: Tensor, steps: Tensor
    ) -> tuple[Tensor, State, State]:
        """Return the weights to send [C, P], extras to send with them, and the new state, after `steps` [C] steps."""
        return last, {}, state

    def judge(self, task: Task, state: State, training: Tensor, held_out: Tensor) -> tuple[State, State]:
        """Return columns for the report [C each] and the state, from mean losses [C each]; only if `judges`.

        `held_out` is the loss of the trained model on held-out examples, NaN where a client has none.
        """
        return {}, state

    def personal(self, setting: Setting, model: Tensor, state: State) -> Tensor | None:
        """Return the clients' own models [C, P]; None if the global model serves all."""
        return None

    # ---- on the server
    def server_state(self, setting: Setting, model: Tensor) -> State:
        """Return the memory before the first round."""
        return {}

    def brief(self, memory: State, setting: Setting, ids: Tensor) -> State:
        """Return extras for each client of the cohort [C, ...]; expand rows that all share."""
        return {}

    def debrief(self, memory: State, setting: Setting, old: Tensor, new: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Return the aggregated model `new` [P], adjusted, and the new memory; `old` is the model before."""
        return new, memory


@dataclass(frozen=True)
class Tuning:
    """Training of clients' models on their own examples before they are tried; nothing of it is kept."""

    rule: LocalRule  # which says what is trained
    epochs: int
