"""What a client does in a round, written once over a cohort's rows: a real device calls it with one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.local.work import Batches
from fedloom.method import Method
from fedloom.types import Reply, Setting, State, Task, rows

_MOMENTS = "optimiser."  # names of what a kept optimiser remembers, in the client's state


class Batch(NamedTuple):
    """One step's examples, of the clients that take the step."""

    x: Tensor  # [C, B, ...]
    y: Tensor  # [C, B]
    weight: Tensor  # [C, B] sums to 1 for every client; 0 pads short batches
    keys: Tensor  # [C] chance for the network's own randomness


class Gradient(Protocol):
    """How a cohort's loss is differentiated: one client after another, under vmap, or stacked."""

    def __call__(self, params: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Gradients [C, P] and losses [C]; running statistics in `params` move in place."""

    def descend(
        self, first: Tensor, batches: Iterator[Batch], rate: float, shrink: float
    ) -> tuple[Tensor, Tensor] | None:
        """All steps of `w <- shrink * w - rate * g` at once: weights and summed losses. None: it has no such way."""

    def outputs(self, params: Tensor, x: Tensor) -> Tensor:
        """What every client's network says of its own examples [C, B, ...], in evaluation mode."""


class Examples(NamedTuple):
    """The data set, on the device that trains."""

    x: Tensor  # [n, ...]
    y: Tensor  # [n]


def initial_state(method: Method, setting: Setting, model: Tensor) -> State:
    """One client's state at first contact."""
    state = method.local.client_state(setting, model)
    if method.optimiser.fresh:
        return state
    moments = method.optimiser.begin(model[None, : setting.layout.trained])
    return {**state, **{f"{_MOMENTS}{name}": value[0] for name, value in moments.items()}}


def feed(data: Examples, batches: Batches) -> Iterator[Batch]:
    """The steps one by one, gathered when they are needed."""
    weight = batches.real.to(torch.float32)
    weight /= weight.sum(2, keepdim=True)  # [C, S, B]
    for step, active in enumerate(batches.active):
        index = batches.examples[:active, step]
        yield Batch(
            data.x.index_select(0, index.flatten()).unflatten(0, index.shape),  # quicker than data.x[index]
            data.y[index],
            weight[:active, step],
            batches.keys[:active, step],
        )


class Learnt(NamedTuple):
    """What training gave."""

    first: Tensor  # [C, P] what each client started from
    sent: Tensor  # [C, P] what it would send
    extras: State
    losses: Tensor  # [C] summed over steps


def reply_of(
    method: Method,
    setting: Setting,
    ids: Tensor,
    task: Task,
    learnt: Learnt,
    state: State,
    batches: Batches,
    chance: Chance,
) -> Reply:
    """Choose what goes back, and report."""
    own = {name: value for name, value in state.items() if not name.startswith(_MOMENTS)}
    mask = method.upload(setting, task, own, learnt.first, learnt.sent, chance)
    report = {
        "examples": setting.fleet.examples[ids],
        "steps": batches.steps,
        "loss": learnt.losses / batches.steps,
    }
    return Reply(ids, learnt.sent, mask, learnt.extras, report, task.authorised)


def learn(
    method: Method,
    gradient: Gradient,
    data: Examples,
    task: Task,
    params: Tensor,
    state: State,
    batches: Batches,
    held: bool = False,
) -> tuple[Learnt, State]:
    """Start from `params` [C, P] as the rule says, train, and finish as it says.

    `held`: the gradient itself holds in place what the rule does not train.
    """
    rule, optimiser = method.local, method.optimiser
    own = {name: value for name, value in state.items() if not name.startswith(_MOMENTS)}
    moments = {name.removeprefix(_MOMENTS): value for name, value in state.items() if name.startswith(_MOMENTS)}
    first = rule.start(task, own, params)
    done = None
    if optimiser.plain and not rule.corrects and (held or rule.trains(task) is None):
        done = gradient.descend(first, feed(data, batches), task.rate, 1 - task.rate * optimiser.weight_decay)
    last, losses = done or _descend(method, gradient, task, own, moments, first, feed(data, batches))
    sent, extras, own = rule.finish(task, own, first, last, batches.steps)
    kept = {f"{_MOMENTS}{name}": value for name, value in moments.items()}
    return Learnt(first, sent, extras, losses), {**own, **kept}


def _descend(
    method: Method,
    gradient: Gradient,
    task: Task,
    state: State,
    moments: State,
    first: Tensor,
    batches: Iterator[Batch],
) -> tuple[Tensor, Tensor]:
    """Step by step: differentiate, correct, move. Kept moments change in place."""
    rule, optimiser, trained = method.local, method.optimiser, task.trained
    trains = rule.trains(task)
    moments = moments or optimiser.begin(first[:, :trained])
    params = first.clone(memory_format=torch.contiguous_format)
    losses = params.new_zeros(len(params))
    for batch in batches:
        now = slice(len(batch.y))  # those who still have steps to take
        part, state_now, here = task.rows(now), rows(state, now), params[now]
        seen = rule.view(part, here)
        grads, loss = gradient(seen, batch)
        if seen is not here:
            here[:, trained:] = seen[:, trained:]  # running statistics moved in what ran
        grads = rule.correct(part, state_now, first[now], here, grads)
        may = None if trains is None else trains[now, :trained]
        optimiser.step(rows(moments, now), here[:, :trained], grads[:, :trained], task.rate, may)
        losses[now] += loss
    if trains is not None:  # running statistics outside the mask stay too
        params = torch.where(trains, params, first)
    return params, losses
