"""A client's part of a round, written once over the rows of a cohort; a real device calls it with one row."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.types import Batch, Examples, Reply, Setting, State, Task
from fedloom.core.work import Batches
from fedloom.engine.gradient.protocol import Gradient
from fedloom.engine.steps import Start, Steps, take_steps
from fedloom.method import Method

_MOMENTS = "optimiser."  # names of what a kept optimiser remembers, in the client's state


def initial_state(method: Method, setting: Setting, model: Tensor) -> State:
    """One client's state at first contact."""
    state = method.local.client_state(setting, model)
    if method.optimiser.fresh:
        return state
    moments = method.optimiser.begin(model[None, : setting.layout.trained])
    return _together(state, {name: value[0] for name, value in moments.items()})


class Chunk(NamedTuple):
    """C clients about to be trained together, in falling order of their steps."""

    ids: Tensor  # [C]
    listed: list[int]  # `ids` on the host
    data: Examples  # in which `batches` count
    task: Task
    params: Tensor  # [C, P] what came down
    state: State
    batches: Batches
    width: tuple[int, ...]  # how many neurons of every group each client keeps, where that matters


class Learnt(NamedTuple):
    """What training gave."""

    first: Tensor  # [C, P] what each client started from
    sent: Tensor  # [C, P] what it would send
    extras: State
    losses: Tensor  # [C] summed over steps


def reply_of(
    method: Method, setting: Setting, chunk: Chunk, learnt: Learnt, state: State, chance: Chance, columns: State
) -> Reply:
    """Choose what goes back; `columns` [C each] are added to the report."""
    own, _ = _apart(state)
    mask = method.upload(setting, chunk.task, own, learnt.first, learnt.sent, chance)
    report = {
        "examples": setting.fleet.examples[chunk.ids],
        "steps": chunk.batches.steps,
        "loss": learnt.losses / chunk.batches.steps,
        **columns,
    }
    return Reply(chunk.ids, learnt.sent, mask, learnt.extras, report, chunk.task.authorised)


def learn(start: Start, steps: Steps = take_steps) -> tuple[Learnt, State]:
    """Begin from `start.first`, the parameters that came down, as the rule says; train; finish as the rule says.

    `start.state` is the client's whole state [C, ...], which is returned as it is after the round.
    """
    rule, task = start.method.local, start.task
    own, moments = _apart(start.state)
    first = rule.start(task, own, start.first)
    last, losses = steps(start._replace(state=own, moments=moments, first=first))
    sent, extras, own = rule.finish(task, own, first, last, start.batches.steps)
    return Learnt(first, sent, extras, losses), _together(own, moments)


def keep_network(setting: Setting, task: Task) -> Task:
    """The task as a rule that `keeps` reads it: the mask is the client's whole part, what came of it lies in extras."""
    if task.mask is None:
        return task
    whole = None if task.keep is None else setting.neurons.expand(task.keep)
    return task._replace(mask=whole, extras={**task.extras, "sent": task.mask})


def choose_part(
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


def judge(
    method: Method,
    setting: Setting,
    gradient: Gradient,
    chunk: Chunk,
    learnt: Learnt,
    state: State,
    held_out: tuple[Examples, Tensor, Tensor],
) -> tuple[State, State]:
    """The rule's columns and state, from the trained models' losses on held-out examples.

    `held_out`: a data set, rows of it [C, M] (padded), and how many of each client's rows are real [C].
    """
    data, rows, sizes = held_out
    own, moments = _apart(state)
    output = gradient.outputs(learnt.sent, data.x[rows])
    losses = setting.loss(output.flatten(0, 1), data.y[rows].flatten()).unflatten(0, rows.shape)
    real = torch.arange(rows.shape[1], device=rows.device) < sizes[:, None]
    mean = torch.where(real, losses, 0).sum(1) / sizes  # NaN where there is none
    columns, own = method.local.judge(chunk.task, own, learnt.losses / chunk.batches.steps, mean)
    return columns, _together(own, moments)


def _apart(state: State) -> tuple[State, State]:
    """What the rule remembers, and what a kept optimiser does."""
    own = {name: value for name, value in state.items() if not name.startswith(_MOMENTS)}
    return own, {name.removeprefix(_MOMENTS): v for name, v in state.items() if name.startswith(_MOMENTS)}


def _together(own: State, moments: State) -> State:
    return {**own, **{f"{_MOMENTS}{name}": value for name, value in moments.items()}}
