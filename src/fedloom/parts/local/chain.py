"""Local: several rules at once; every hook calls the members in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.rule import Descend, LocalRule, Objective, Shift, Traits, Tuning
from fedloom.core.types import Batch, Reply, Setting, State, Task

if TYPE_CHECKING:
    from fedloom.core.goal import Loss
    from fedloom.method import Method


def _own(state: State, place: int) -> State:
    """A member's tensors of the chain's state, by its place in the chain."""
    prefix = f"{place}."
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _all(parts: list[State]) -> State:
    """Members' states as one; each name is prefixed with the member's place in the chain."""
    return {f"{place}.{name}": value for place, part in enumerate(parts) for name, value in part.items()}


@dataclass(frozen=True)
class Chain(LocalRule):
    """Rules applied in order; `Chain((SubModel(), Prox(0.1)))` is FedProx on sub-models."""

    rules: tuple[LocalRule, ...]

    @property
    def traits(self) -> Traits:
        """The members' traits, merged; nothing is `freezes` if several members restrict training."""
        traits = reduce(or_, (rule.traits for rule in self.rules), Traits())
        return traits if len(self.defining("trains")) == 1 else replace(traits, freezes=False)

    @property
    def passes(self) -> int:
        """The most of any member."""
        return max((rule.passes for rule in self.rules), default=1)

    @property
    def tunes(self) -> Tuning | None:
        """That of the first member that tunes."""
        return next((tuning for rule in self.rules if (tuning := rule.tunes) is not None), None)

    def members(self) -> tuple[LocalRule, ...]:
        """The chain and all rules in it."""
        return (self, *(member for rule in self.rules for member in rule.members()))

    def clash(self, method: Method) -> str | None:
        """Refuse rules that cut the network next to rules that need the whole of it, and what members refuse."""
        traits = self.traits
        if traits.needs_whole and traits.cuts:
            parties = (rule for rule in self.rules if rule.traits.cuts or rule.traits.needs_whole)
            names = " and ".join(type(rule).__name__ for rule in parties)
            return f"of {names} one leaves out of the network what the other keeps; take one of them."
        if len(aiming := self.defining("objective")) > 1:
            names = " and ".join(type(rule).__name__ for rule in aiming)
            return f"{names} each say what to minimise; take one of them."
        twins = [type(rule).__name__ for rule in self.rules if rule.twin is not None]
        if twins:
            return f"{twins[0]} trains two models and works alone; take it out of the chain."
        return next((why for rule in self.rules if (why := rule.clash(method)) is not None), None)

    def client_state(self, setting: Setting, model: Tensor) -> State:
        """The states of all members."""
        return _all([rule.client_state(setting, model) for rule in self.rules])

    def constants(self, setting: Setting) -> State:
        """The constants of all members."""
        return _all([rule.constants(setting) for rule in self.rules])

    def narrow(
        self, setting: Setting, ids: Tensor, task: Task, state: State, look: Iterable[Batch], chance: Chance
    ) -> tuple[Tensor | None, State]:
        """Let each member choose from what the one before chose."""
        states = []
        for place, rule in enumerate(self.rules):
            own = self._task(task, place)
            mask, kept = rule.narrow(setting, ids, own, _own(state, place), look, chance)
            task = task._replace(mask=mask)
            states.append(kept)
        return task.mask, _all(states)

    def start(self, task: Task, state: State, params: Tensor) -> Tensor:
        """Let each member start from what the one before returned."""
        for place, rule in enumerate(self.rules):
            params = rule.start(self._task(task, place), _own(state, place), params)
        return params

    def trains(self, task: Task) -> Tensor | None:
        """The numbers that every member trains."""
        found = (rule.trains(self._task(task, place)) for place, rule in enumerate(self.rules))
        masks = [mask for mask in found if mask is not None]
        if not masks:
            return None
        allowed = masks[0]
        for mask in masks[1:]:
            allowed = allowed & mask
        return allowed

    def objective(self, task: Task, loss: Loss) -> Objective | None:
        """That of the one member that has one."""
        found = (rule.objective(self._task(task, n), loss) for n, rule in enumerate(self.rules) if rule.traits.aims)
        return next(found, None)

    def turn(self, task: Task, state: State, epoch: Tensor) -> Tensor | None:
        """The numbers that every member trains in this pass."""
        turns = (rule.turn(self._task(task, n), _own(state, n), epoch) for n, rule in enumerate(self.rules))
        masks = [mask for mask in turns if mask is not None]
        return reduce(and_, masks) if masks else None

    def view(self, task: Task, params: Tensor) -> Tensor:
        """Apply the views of the members in order."""
        for place, rule in enumerate(self.rules):
            params = rule.view(self._task(task, place), params)
        return params

    def scales(self, task: Task, at: Tensor, dtype: torch.dtype) -> Tensor | None:
        """The product of the scales of the members that scale."""
        whole = None
        for place, rule in enumerate(self.rules):
            if (own := rule.scales(self._task(task, place), at, dtype)) is not None:
                whole = own if whole is None else whole * own
        return whole

    def shift(self, task: Task, state: State, first: Tensor) -> Shift:
        """What all members add."""
        each = (rule.shift(self._task(task, n), _own(state, n), first) for n, rule in enumerate(self.rules))
        return sum(each, Shift())

    def correct(self, task: Task, state: State, first: Tensor, params: Tensor, grads: Tensor) -> Tensor:
        """Apply the corrections in order; each gets the gradients that the one before returned."""
        for place, rule in enumerate(self.rules):
            grads = rule.correct(self._task(task, place), _own(state, place), first, params, grads)
        return grads

    def probes(self, task: Task) -> bool:
        """Whether any member does."""
        return any(rule.probes(self._task(task, place)) for place, rule in enumerate(self.rules))

    def probed(self, task: Task, state: State, last: Tensor, grads: Tensor) -> State:
        """Let each member that asked note the gradients."""
        states = []
        for place, rule in enumerate(self.rules):
            own, mine = self._task(task, place), _own(state, place)
            states.append(rule.probed(own, mine, last, grads) if rule.probes(own) else mine)
        return _all(states)

    def aside(self, task: Task, state: State, first: Tensor, steps: Tensor) -> State:
        """What all members have beside the model."""
        rules = enumerate(self.rules)
        return _all([rule.aside(self._task(task, n), _own(state, n), first, steps) for n, rule in rules])

    def after(self, task: Task, state: State, params: Tensor, gradient: Descend) -> State:
        """What all members have after a step."""
        rules = enumerate(self.rules)
        return _all([rule.after(self._task(task, n), _own(state, n), params, gradient) for n, rule in rules])

    def finish(
        self, task: Task, state: State, first: Tensor, last: Tensor, steps: Tensor
    ) -> tuple[Tensor, State, State]:
        """Let each member change what the one before sends."""
        extras, states = [], []
        for place, rule in enumerate(self.rules):
            last, extra, kept = rule.finish(self._task(task, place), _own(state, place), first, last, steps)
            extras.append(extra)
            states.append(kept)
        return last, _all(extras), _all(states)

    def judge(self, task: Task, state: State, training: Tensor, held_out: Tensor) -> tuple[State, State]:
        """The columns of all members; of equal names the last member's."""
        columns, states = {}, []
        for place, rule in enumerate(self.rules):
            found, kept = rule.judge(self._task(task, place), _own(state, place), training, held_out)
            columns.update(found)
            states.append(kept)
        return columns, _all(states)

    def personal(self, setting: Setting, model: Tensor, state: State) -> Tensor | None:
        """The own models of the first member that has them."""
        owns = (rule.personal(setting, model, _own(state, place)) for place, rule in enumerate(self.rules))
        return next((own for own in owns if own is not None), None)

    def server_state(self, setting: Setting, model: Tensor) -> State:
        """The server states of all members."""
        return _all([rule.server_state(setting, model) for rule in self.rules])

    def brief(self, memory: State, setting: Setting, ids: Tensor) -> State:
        """The extras of all members."""
        return _all([rule.brief(_own(memory, place), setting, ids) for place, rule in enumerate(self.rules)])

    def debrief(self, memory: State, setting: Setting, old: Tensor, new: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Let each member adjust the model that the one before returned."""
        memories = []
        for place, rule in enumerate(self.rules):
            own = reply._replace(extras=_own(reply.extras, place))
            new, kept = rule.debrief(_own(memory, place), setting, old, new, own)
            memories.append(kept)
        return new, _all(memories)

    @staticmethod
    def _task(task: Task, place: int) -> Task:
        return task._replace(extras=_own(task.extras, place))
