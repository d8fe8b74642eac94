"""A client's part of a round, over the rows of a cohort; a node of a real network calls it with one row."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.rule import LocalRule
from fedloom.core.types import Batch, Examples, Reply, Setting, State, Task
from fedloom.core.work import Batches
from fedloom.engine.gradient.protocol import Gradient
from fedloom.engine.steps import Start, Steps, take_steps
from fedloom.method import Method

_MOMENTS = "optimiser."  # prefix of the optimiser's moments in a client's state


def initial_state(method: Method, setting: Setting, model: Tensor) -> State:
    """One client's state at first contact."""
    state = method.local.client_state(setting, model)
    if method.optimiser.fresh:
        return state
    moments = method.optimiser.begin(model[None, : setting.layout.trained])
    return _with_moments(state, {name: value[0] for name, value in moments.items()})


class Chunk(NamedTuple):
    """C clients that are trained together, in falling order of their number of steps."""

    ids: Tensor  # [C]
    listed: list[int]  # `ids` on the host
    data: Examples  # that `batches` index
    task: Task
    params: Tensor  # [C, P] the parameters that came down
    state: State
    batches: Batches
    width: tuple[int, ...]  # neurons that each client keeps of every group; () where that does not matter


class Learnt(NamedTuple):
    """The result of training a chunk."""

    first: Tensor  # [C, P] the parameters that each client started from
    sent: Tensor  # [C, P] the parameters that it would send
    extras: State
    losses: Tensor  # [C] summed over steps


def reply_of(
    method: Method, setting: Setting, chunk: Chunk, learnt: Learnt, state: State, chance: Chance, columns: State
) -> Reply:
    """The reply, masked by the method's upload; `columns` [C each] are added to its report."""
    own, _ = _split_moments(state)
    mask = method.upload(setting, chunk.task, own, learnt.first, learnt.sent, chance)
    report = {
        "examples": setting.fleet.examples[chunk.ids],
        "steps": chunk.batches.steps,
        "loss": learnt.losses / chunk.batches.steps,
        **columns,
    }
    return Reply(chunk.ids, learnt.sent, mask, learnt.extras, report, chunk.task.authorised)


def learn(start: Start, steps: Steps = take_steps) -> tuple[Learnt, State]:
    """Train: the rule's `start` from the parameters that came down (`start.first`), all steps, the rule's `finish`.

    `start.state` is the clients' whole state [C, ...]; the state after the round is returned.
    """
    rule, task, came = start.method.local, start.task, start.first
    own, moments = _split_moments(start.state)
    first = rule.start(task, own, start.first)
    taken = start.batches.steps
    aside = rule.aside(task, own, first, taken) if rule.traits.evolves else {}
    start = start._replace(state=own, moments=moments, first=first, aside={n: v.clone() for n, v in aside.items()})
    last, losses = steps(start)
    task = start.task_at(slice(None))
    if rule.probes(task):
        own = rule.probed(task, own, last, _probe(start, last))
    if rule.twin is not None:
        task = task._replace(extras={**task.extras, "own": _twin(start, came, rule.twin, steps)})
    sent, extras, own = rule.finish(task, own, first, last, taken)
    return Learnt(first, sent, extras, losses), _with_moments(own, moments)


def _twin(start: Start, came: Tensor, rule: LocalRule, steps: Steps) -> Tensor:
    """The clients' own models [C, P] after their training; `came` [C, P] are the parameters that came down."""
    task = start.task._replace(extras={**start.task.extras, "sent": came})
    first = rule.start(task, start.state, came)
    method = replace(start.method, local=rule)
    return steps(start._replace(method=method, task=task, moments={}, first=first, aside={}))[0]


def _probe(start: Start, last: Tensor) -> Tensor:
    """Gradients of all numbers [C, P] on each client's first batch of the round, at the trained weights."""
    seen = start.method.local.view(start.task, last).clone()  # its running statistics move
    grads, _ = start.gradient(seen, next(iter(start.feed())))
    grads[:, start.task.trained :] = 0
    return grads


def keep_network(setting: Setting, task: Task) -> Task:
    """The task of a rule with `keeps_network`: the mask is the client's whole part, extras hold what was sent."""
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
    strata: Tensor | None,
    chance: Chance,
) -> tuple[Task, State]:
    """The task with the part that each client chooses to train, given its examples `rows` [C, M] (padded).

    `strata` [C, M]: the stratum of each of these, where the data have some apart from the goal's classes.
    """
    own, moments = _split_moments(state)
    each = method.local.traits.looks  # examples of each class; 0: it chooses without data
    if strata is None and setting.goal.strata:
        strata = data.y[rows]
    sizes, dtype = setting.fleet.examples[ids], task.model.dtype
    look = [_look(data, ids, rows, sizes, strata, each, chance, dtype)] if each else []
    mask, own = method.local.narrow(setting, ids, task, own, look, chance)
    return task._replace(mask=mask, keep=None), _with_moments(own, moments)


def _look(
    data: Examples,
    ids: Tensor,
    rows: Tensor,
    sizes: Tensor,
    strata: Tensor | None,
    each: int,
    chance: Chance,
    dtype: torch.dtype,
) -> Batch:
    """At most `each` examples of every stratum for each client, in an order that is fixed for the run.

    Where there are no strata, the first `10 * each` examples.
    """
    place = torch.arange(rows.shape[1], device=rows.device)
    keys = chance._replace(round=0).key("look", ids[:, None], place)
    keys = keys.masked_fill(place >= sizes[:, None], torch.iinfo(torch.int64).max)  # padding goes last
    order = keys.argsort(dim=1, stable=True)
    rows = rows.gather(1, order)
    if strata is not None:
        strata = strata.gather(1, order)
        one_hot = F.one_hot(strata)
        before = one_hot.cumsum(1).gather(2, strata[:, :, None])[:, :, 0]  # place within its stratum, counted from 1
        chosen = before <= each
    else:
        chosen = place < 10 * each
    weight = (chosen & (place < sizes[:, None])).to(dtype)
    seen = place < weight.any(0).nonzero().max() + 1  # columns without weight are not gathered
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
    """The local rule's report columns and the new state, given the trained models' losses on held-out examples.

    `held_out`: a data set, row numbers in it [C, M] (padded), and the number of each client's real rows [C].
    """
    data, rows, sizes = held_out
    own, moments = _split_moments(state)
    output = gradient.outputs(learnt.sent, data.x[rows])
    targets = data.y[rows].flatten(0, 1)
    losses = setting.goal.loss(output.flatten(0, 1), targets).unflatten(0, rows.shape)
    real = torch.arange(rows.shape[1], device=rows.device) < sizes[:, None]
    count: Tensor = sizes
    if setting.goal.weigh is not None:
        weight = torch.where(real, setting.goal.weigh(targets).unflatten(0, rows.shape).to(losses), 0)
        losses, count = losses * weight, weight.sum(1)
    mean = torch.where(real, losses, 0).sum(1) / count  # NaN for a client without held-out examples
    columns, own = method.local.judge(chunk.task, own, learnt.losses / chunk.batches.steps, mean)
    return columns, _with_moments(own, moments)


def _split_moments(state: State) -> tuple[State, State]:
    """A client's state as the state of the rule and the optimiser's moments."""
    own = {name: value for name, value in state.items() if not name.startswith(_MOMENTS)}
    return own, {name.removeprefix(_MOMENTS): v for name, v in state.items() if name.startswith(_MOMENTS)}


def _with_moments(own: State, moments: State) -> State:
    """The opposite of `_split_moments`."""
    return {**own, **{f"{_MOMENTS}{name}": value for name, value in moments.items()}}
