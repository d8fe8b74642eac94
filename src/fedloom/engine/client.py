"""What a client does in a round, written once over a cohort's rows: a real device calls it with one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.rows import rows
from fedloom.core.types import Batch, Examples, Reply, Setting, State, Task
from fedloom.core.work import Batches
from fedloom.method import Method

_MOMENTS = "optimiser."  # names of what a kept optimiser remembers, in the client's state


class Gradient(Protocol):
    """How a cohort's loss is differentiated: one client after another, under vmap, or stacked."""

    def __call__(self, params: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Gradients [C, P] and losses [C]; running statistics in `params` move in place."""

    def descend(
        self, first: Tensor, batches: Iterable[Batch], rate: float, shrink: float, momentum: float = 0.0
    ) -> tuple[Tensor, Tensor] | None:
        """All steps of `w <- shrink * w - rate * g` at once: weights and summed losses. None: it has no such way.

        `momentum`: of velocities `v <- momentum * v + g`, from zero on, that stand in the gradient's place.
        """

    def outputs(self, params: Tensor, x: Tensor) -> Tensor:
        """What every client's network says of its own examples [C, B, ...], in evaluation mode."""


def initial_state(method: Method, setting: Setting, model: Tensor) -> State:
    """One client's state at first contact."""
    state = method.local.client_state(setting, model)
    if method.optimiser.fresh:
        return state
    moments = method.optimiser.begin(model[None, : setting.layout.trained])
    return _together(state, {name: value[0] for name, value in moments.items()})


class Stretch(NamedTuple):
    """Some steps of the same clients, one after another."""

    x: Iterator[Tensor]  # [s, C, B, ...] each: examples of the next few steps, in the place of those before
    y: Tensor  # [S, C, B]
    weight: Tensor  # [S, C, B]


@dataclass(frozen=True)
class Feed:
    """A cohort's steps; their examples are gathered when they are needed."""

    data: Examples
    batches: Batches

    def __iter__(self) -> Iterator[Batch]:
        """The steps one by one."""
        order, targets, weight = self._steps()
        x, shape, active = self.data.x, self.data.x.shape[1:], self.batches.active
        for now, index, y, own, keys in zip(active, order, targets, weight, self.batches.keys.unbind(1)):
            if now < len(index):
                index, y, own, keys = index[:now], y[:now], own[:now], keys[:now]
            # quicker than x[index]
            yield Batch(x.index_select(0, index.view(-1)).view(*index.shape, *shape), y, own, keys)

    def stretches(self, examples: int, numbers: int) -> Iterator[Stretch]:
        """The same in stretches of up to so many examples, of which up to so many numbers are gathered at once."""
        order, y, weight = self._steps()
        first, steps, active = 0, len(self.batches.active), self.batches.active
        while first < steps:
            now = active[first]
            end = min(steps, first + max(1, examples // (now * order.shape[2])))
            end = next((at for at in range(first, end) if active[at] != now), end)
            part = slice(first, end), slice(now)
            yield Stretch(self._gathered(order[part], numbers), y[part], weight[part])
            first = end

    def _gathered(self, order: Tensor, numbers: int) -> Iterator[Tensor]:
        """Examples of a few steps at a time, always in one place: fresh memory can take longer than copying."""
        x, (steps, clients, width) = self.data.x, order.shape
        each = clients * width  # examples of a step
        some = min(steps, max(1, numbers // max(1, each * x[0].numel())))
        place = x.new_empty(some * each, *x.shape[1:])
        for index in order.reshape(-1).split(some * each):
            found = torch.index_select(x, 0, index, out=place[: len(index)])
            yield found.view(-1, clients, width, *x.shape[1:])

    def _steps(self) -> tuple[Tensor, Tensor, Tensor]:
        """Places, targets and weights of the examples of every step [S, C, B]."""
        order = self.batches.examples.transpose(0, 1).contiguous()
        weight = self.batches.real.transpose(0, 1).to(torch.float32)
        weight /= weight.sum(2, keepdim=True)
        return order, self.data.y[order], weight


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
    judged: State,
) -> Reply:
    """Choose what goes back, and report."""
    own, _ = _apart(state)
    mask = method.upload(setting, task, own, learnt.first, learnt.sent, chance)
    report = {
        "examples": setting.fleet.examples[ids],
        "steps": batches.steps,
        "loss": learnt.losses / batches.steps,
        **judged,
    }
    return Reply(ids, learnt.sent, mask, learnt.extras, report, task.authorised)


class Start(NamedTuple):
    """Where a cohort's steps begin, and what they read."""

    method: Method
    gradient: Gradient
    data: Examples
    task: Task
    state: State  # what the rule remembers
    moments: State  # what a kept optimiser does; they change in place
    first: Tensor  # [C, P]
    batches: Batches
    held: bool = False  # the gradient itself holds in place what the rule does not train


Walk = Callable[[Start], tuple[Tensor, Tensor]]  # the weights after all steps [C, P] and the summed losses [C]


def learn(
    method: Method,
    gradient: Gradient,
    data: Examples,
    task: Task,
    params: Tensor,
    state: State,
    batches: Batches,
    held: bool = False,
    walk: Walk | None = None,
) -> tuple[Learnt, State]:
    """Start from `params` [C, P] as the rule says, train, and finish as it says.

    `held`: the gradient itself holds in place what the rule does not train. `walk`: another way to take the steps.
    """
    rule = method.local
    own, moments = _apart(state)
    first = rule.start(task, own, params)
    start = Start(method, gradient, data, task, own, moments, first, batches, held)
    last, losses = (walk or step_by_step)(start)
    sent, extras, own = rule.finish(task, own, first, last, batches.steps)
    return Learnt(first, sent, extras, losses), _together(own, moments)


def step_by_step(start: Start) -> tuple[Tensor, Tensor]:
    """The plain way to take the steps."""
    method, task, first = start.method, start.task, start.first
    rule, optimiser, rate = method.local, method.optimiser, task.rate
    batches = Feed(start.data, start.batches)
    if (optimiser.plain or optimiser.heavy) and not rule.traits.corrects and (start.held or rule.trains(task) is None):
        shrink, momentum = 1 - rate * optimiser.weight_decay, optimiser.momentum
        done = start.gradient.descend(first, batches, rate, shrink, momentum)
        if done is not None:
            return done
    return _descend(method, start.gradient, task, start.state, start.moments, first, batches)


def beside(setting: Setting, task: Task) -> Task:
    """The task as a rule that `keeps` reads it: the mask is the client's whole part, what came of it lies in extras."""
    if task.mask is None:
        return task
    whole = None if task.keep is None else setting.neurons.expand(task.keep)
    return task._replace(mask=whole, extras={**task.extras, "sent": task.mask})


def narrowed(
    method: Method,
    setting: Setting,
    ids: Tensor,
    task: Task,
    state: State,
    data: Examples,
    rows: Tensor,
    chance: Chance,
) -> tuple[Task, State]:
    """The task with the part that each client itself chooses to train, of examples `rows` [C, M] (padded)."""
    own, moments = _apart(state)
    each = method.local.traits.looks  # 0: it chooses without data
    look = [_look(data, ids, rows, setting.fleet.examples[ids], each, chance)] if each else []
    mask, own = method.local.narrow(setting, ids, task, own, look, chance)
    return task._replace(mask=mask, keep=None), _together(own, moments)


def _look(data: Examples, ids: Tensor, rows: Tensor, sizes: Tensor, each: int, chance: Chance) -> Batch:
    """Up to `each` examples of every class of each client's own, in an order that stands still during a run."""
    place = torch.arange(rows.shape[1], device=rows.device)
    keys = chance._replace(round=0).key("look", ids[:, None], place)
    keys = keys.masked_fill(place >= sizes[:, None], torch.iinfo(torch.int64).max)  # padding goes last
    rows = rows.gather(1, keys.argsort(dim=1, stable=True))
    labels = data.y[rows]
    one_hot = F.one_hot(labels, int(data.y.max()) + 1)
    before = one_hot.cumsum(1).gather(2, labels[:, :, None])[:, :, 0]  # of its class, counted from 1
    weight = ((before <= each) & (place < sizes[:, None])).to(torch.float32)
    seen = place < weight.any(0).nonzero().max() + 1  # what nobody looks at is not gathered
    rows, weight = rows[:, seen], weight[:, seen]
    return Batch(data.x[rows], data.y[rows], weight / weight.sum(1, keepdim=True), keys[:, 0])


def judged(
    method: Method,
    setting: Setting,
    gradient: Gradient,
    task: Task,
    learnt: Learnt,
    state: State,
    batches: Batches,
    data: Examples,
    held: Tensor,
    sizes: Tensor,
) -> tuple[State, State]:
    """What the rule makes of the models' losses on examples `held` [C, M] (padded), the first `sizes` [C] real."""
    own, moments = _apart(state)
    output = gradient.outputs(learnt.sent, data.x[held])
    losses = setting.loss(output.flatten(0, 1), data.y[held].flatten()).unflatten(0, held.shape)
    real = torch.arange(held.shape[1], device=held.device) < sizes[:, None]
    mean = torch.where(real, losses, 0).sum(1) / sizes  # NaN where there is none
    columns, own = method.local.judge(task, own, learnt.losses / batches.steps, mean)
    return columns, _together(own, moments)


def _apart(state: State) -> tuple[State, State]:
    """What the rule remembers, and what a kept optimiser does."""
    own = {name: value for name, value in state.items() if not name.startswith(_MOMENTS)}
    return own, {name.removeprefix(_MOMENTS): v for name, v in state.items() if name.startswith(_MOMENTS)}


def _together(own: State, moments: State) -> State:
    return {**own, **{f"{_MOMENTS}{name}": value for name, value in moments.items()}}


def _descend(
    method: Method,
    gradient: Gradient,
    task: Task,
    state: State,
    moments: State,
    first: Tensor,
    batches: Iterable[Batch],
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
