"""Local: an update that could not be sent is added to the client's next start (FedUMF)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.rule import LocalRule, Objective, Shift, Traits
from fedloom.core.types import Batch, Reply, Setting, State, Task, column
from fedloom.errors import BadExperiment, unknown
from fedloom.parts.local.drift import trained_only

if TYPE_CHECKING:
    from fedloom.core.goal import Loss
    from fedloom.method import Method

REFERENCES = ("global", "fused")
INNER = "inner."  # prefix of the inner rule's names in the client's state


@dataclass(frozen=True)
class FuseMissed(LocalRule):
    """The `inner` rule, started at `w + alpha * (rate now / rate then) * g` by clients that missed the last upload.

    These are clients that may send now and might not last round. `g` is the update of the client's last training, which
    every client stores every round. An update older than a round, as after a lost download, is not fused, nor are
    running statistics. The state of the inner rule is updated only if the client may send. The `reference`, which the
    inner rule takes for its start when it corrects gradients and finishes, is the global model or the fused start.
    """

    alpha: float = 1.0
    inner: LocalRule = LocalRule()
    reference: Literal["global", "fused"] = "global"

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise BadExperiment(f"alpha (weight of the missed update) is {self.alpha}; it lies from 0 to 1.")
        if self.reference not in REFERENCES:
            raise BadExperiment(unknown("reference", self.reference, REFERENCES))

    @property
    def traits(self) -> Traits:
        """The inner rule's traits; `correct` does not merely scale, since it may see another start."""
        return replace(self.inner.traits, scales=False)

    def members(self) -> tuple[LocalRule, ...]:
        """This rule and the members of the inner one."""
        return (self, *self.inner.members())

    def clash(self, method: Method) -> str | None:
        """Refuse other rules next to this one, and selections in which every client that trains may send."""
        if method.local != self:
            return "it must know what the other rules train; write FuseMissed(inner=Chain((...))) around them."
        if not method.select.whole_fleet:
            name = type(method.select).__name__
            return f"clients that {name} leaves out do not train, so there is nothing to fuse; select with SomeSend()."
        return self.inner.clash(method)

    def client_state(self, setting: Setting, model: Tensor) -> State:
        """No update was missed, and the inner rule's state."""
        # where sub-models are trained, each number has its own round: numbers not sent are not overwritten
        made = torch.full_like(model if self.traits.cuts else model[0], -1, dtype=torch.int32)
        own = self.inner.client_state(setting, model)
        return {
            "missed": torch.zeros_like(model),
            "made": made,  # the round of the update
            "rate": model.new_ones((), dtype=torch.float64),  # the learning rate then
            "sent": model.new_ones((), dtype=torch.bool),  # whether the client might send then
            **{INNER + name: value for name, value in own.items()},
        }

    def narrow(
        self, setting: Setting, ids: Tensor, task: Task, state: State, look: Iterable[Batch], chance: Chance
    ) -> tuple[Tensor | None, State]:
        """As the inner rule, which remembers its choice even if the client may not send."""
        mask, own = self.inner.narrow(setting, ids, task, _inner(state), look, chance)
        return mask, {**state, **{INNER + name: value for name, value in own.items()}}

    def start(self, task: Task, state: State, params: Tensor) -> Tensor:
        """The inner rule's start, and the missed update added."""
        first, fused = self.inner.start(task, _inner(state), params), self._fused(task, state)
        return first if fused is None else first + fused

    def trains(self, task: Task) -> Tensor | None:
        """As the inner rule."""
        return self.inner.trains(task)

    def objective(self, task: Task, loss: Loss) -> Objective | None:
        """As the inner rule."""
        return self.inner.objective(task, loss)

    def turn(self, task: Task, state: State, epoch: Tensor) -> Tensor | None:
        """As the inner rule."""
        return self.inner.turn(task, _inner(state), epoch)

    def view(self, task: Task, params: Tensor) -> Tensor:
        """As the inner rule."""
        return self.inner.view(task, params)

    def shift(self, task: Task, state: State, first: Tensor) -> Shift:
        """As the inner rule, pulled towards the reference."""
        seen = self._seen_from(task, state, first)
        own = self.inner.shift(task, _inner(state), seen)
        return own if seen is first or not own.pulls else own + Shift(push=own.pull * (first - seen))

    def correct(self, task: Task, state: State, first: Tensor, params: Tensor, grads: Tensor) -> Tensor:
        """As the inner rule, started from the reference."""
        if not self.traits.corrects:
            return grads
        return self.inner.correct(task, _inner(state), self._seen_from(task, state, first), params, grads)

    def probes(self, task: Task) -> bool:
        """As the inner rule."""
        return self.inner.probes(task)

    def probed(self, task: Task, state: State, last: Tensor, grads: Tensor) -> State:
        """As the inner rule."""
        own = self.inner.probed(task, _inner(state), last, grads)
        return {**state, **{INNER + name: value for name, value in own.items()}}

    def finish(
        self, task: Task, state: State, first: Tensor, last: Tensor, steps: Tensor
    ) -> tuple[Tensor, State, State]:
        """Store `g`, whether the client may send or not."""
        plain = not self.inner.defining("finish")  # it does not read the start, which takes three passes to compute
        since = first if plain else self._seen_from(task, state, first)
        sent, extras, own = self.inner.finish(task, _inner(state), since, last, steps)
        missed, made = last - first, torch.full_like(state["made"], task.round)
        if self.traits.cuts and (mask := self.trains(task)) is not None:
            missed, made = torch.where(mask, missed, state["missed"]), torch.where(mask, made, state["made"])
        now = {
            "missed": missed,
            "made": made,
            "rate": torch.ones_like(state["rate"]) * task.rate,
            "sent": task.authorised,
        }
        return sent, extras, {**now, **_where_authorised(task, state, own)}

    def judge(self, task: Task, state: State, training: Tensor, held_out: Tensor) -> tuple[State, State]:
        """As the inner rule."""
        columns, own = self.inner.judge(task, _inner(state), training, held_out)
        return columns, {**state, **_where_authorised(task, state, own)}

    def personal(self, setting: Setting, model: Tensor, state: State) -> Tensor | None:
        """As the inner rule."""
        return self.inner.personal(setting, model, _inner(state))

    def server_state(self, setting: Setting, model: Tensor) -> State:
        """As the inner rule."""
        return self.inner.server_state(setting, model)

    def brief(self, memory: State, setting: Setting, ids: Tensor) -> State:
        """As the inner rule."""
        return self.inner.brief(memory, setting, ids)

    def debrief(self, memory: State, setting: Setting, old: Tensor, new: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """As the inner rule; it gets the global model only, whatever the reference on the clients."""
        return self.inner.debrief(memory, setting, old, new, reply)

    def _fused(self, task: Task, state: State) -> Tensor | None:
        """What is added to the start [C, P]; None if it is nothing for all clients."""
        may = task.authorised & ~state["sent"]
        if self.alpha == 0 or (may.device.type == "cpu" and not bool(may.any())):
            return None
        missed = trained_only(state["missed"], task.trained)
        weight = self.alpha * task.rate / state["rate"]
        fresh = state["made"] == task.round - 1
        fresh = column(may, missed) & (fresh if fresh.dim() > 1 else column(fresh, missed))
        if (mask := self.trains(task)) is not None:
            fresh = fresh & mask
        return torch.where(fresh, column(weight, missed).to(missed.dtype) * missed, 0)

    def _seen_from(self, task: Task, state: State, first: Tensor) -> Tensor:
        """The start that the inner rule is given [C, P]."""
        fused = None if self.reference == "fused" else self._fused(task, state)
        return first if fused is None else first - fused


def _inner(state: State) -> State:
    """The inner rule's state."""
    return {name.removeprefix(INNER): value for name, value in state.items() if name.startswith(INNER)}


def _where_authorised(task: Task, state: State, own: State) -> State:
    """The inner rule's new state for clients that may send, and its old state for the others."""
    kept = {INNER + name: value for name, value in own.items()}
    return {name: torch.where(column(task.authorised, value), value, state[name]) for name, value in kept.items()}
