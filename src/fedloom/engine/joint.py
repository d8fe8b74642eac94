"""Clients of several runs trained as the rows of one matrix: a training step costs little more for many than for few.

Each run gathers its own chunks and gets its own rows back; only the training between is shared. Rows never meet in it,
so a run's numbers are those it has alone, but for the rounding of products of another size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.rows import cat_states, rows
from fedloom.core.types import State, Task, listed as on_device
from fedloom.core.work import Batches
from fedloom.engine.client import Chunk, Learnt
from fedloom.engine.local import Local
from fedloom.method import Method
from fedloom.parts.upload.as_sent import AsSent


class Answer(NamedTuple):
    """What a run gets back."""

    learnt: list[tuple[Learnt, State]]  # for each of its chunks
    seconds: float  # its share of the training, by rows


class _Waiting(NamedTuple):
    """A chunk that nobody has trained yet."""

    asker: int
    place: int  # among the asker's chunks
    lead: Local
    chunk: Chunk


class Joint:
    """Trains what several runs ask for at the same time, as much of it at once as goes together."""

    def __init__(self) -> None:
        self._leads: list[Local] = []  # of each kind of training the engine that does it for all

    def __call__(self, asked: Sequence[tuple[Local, list[Chunk]]]) -> list[Answer]:
        """The answers in the order of the questions."""
        found: list[list[Any]] = [[None] * len(chunks) for _, chunks in asked]
        seconds = [0.0] * len(asked)
        waiting = [
            _Waiting(asker, place, self._lead(engine), chunk)
            for asker, (engine, chunks) in enumerate(asked)
            for place, chunk in enumerate(chunks)
        ]
        while waiting:
            group, waiting = _next_group(waiting)
            began = time.perf_counter()
            learnt = learn_joined(group[0].lead, [one.chunk for one in group])
            each = (time.perf_counter() - began) / sum(len(one.chunk.ids) for one in group)
            for one, own in zip(group, learnt):
                found[one.asker][one.place] = own
                seconds[one.asker] += each * len(one.chunk.ids)
        return [Answer(*each) for each in zip(found, seconds)]

    def _lead(self, engine: Local) -> Local:
        """The engine that trains for this one: always the same, so that what it captured is used again."""
        for lead in self._leads:
            if lead is engine or alike(lead, engine):
                return lead
        self._leads.append(engine)
        return engine


def _next_group(waiting: list[_Waiting]) -> tuple[list[_Waiting], list[_Waiting]]:
    """The first chunk with those that go with it, as many as fit, and the others."""
    lead, kind = waiting[0].lead, _kind(waiting[0].chunk)
    group, others, room = [], [], max(lead.chunk, len(waiting[0].chunk.ids))
    for one in waiting:
        if one.lead is lead and len(one.chunk.ids) <= room and _kind(one.chunk) == kind:
            group.append(one)
            room -= len(one.chunk.ids)
        else:
            others.append(one)
    return group, others


def alike(one: Local, other: Local) -> bool:
    """Whether rows of these engines may be trained in one matrix: they share network, data, plan and rule."""
    shared = one.gradient is other.gradient and one.clients.data.x is other.clients.data.x and one.plan == other.plan
    return shared and why_apart(one) is None and training(one.clients.method) == training(other.clients.method)


def training(method: Method) -> tuple[Any, ...]:
    """All of a method that training itself reads."""
    return method.local, method.optimiser, isinstance(method.upload, AsSent)


def why_apart(engine: Local) -> str | None:
    """Why an engine's rows cannot be trained with another's; None: they can."""
    if engine.plan.gradient == "one by one":
        return "its clients are trained one after another"
    if not engine.clients.shards.resident:
        return "its examples do not fit where they are trained on"
    return foreign_rule(engine.clients.method)


def foreign_rule(method: Method) -> str | None:
    """Rules of a user's own may read `task.model`, which is no row; none of ours does."""
    names = [type(one).__name__ for one in method.local.members() if not type(one).__module__.startswith("fedloom.")]
    return f"{names[0]} may read the global model, which differs from run to run" if names else None


def learn_joined(lead: Local, chunks: Sequence[Chunk]) -> list[tuple[Learnt, State]]:
    """Train chunks of one kind together; each gets its own rows back."""
    if len(chunks) == 1:
        return [lead.learn(chunks[0])]
    whole, places = joined(chunks)
    learnt, state = lead.learn(whole)
    return [
        (Learnt(learnt.first[at], learnt.sent[at], rows(learnt.extras, at), learnt.losses[at]), rows(state, at))
        for at in places
    ]


def joined(chunks: Sequence[Chunk]) -> tuple[Chunk, list[Tensor | slice]]:
    """One chunk of all, in falling order of steps, and the places of each one's rows in it."""
    turn = sorted(range(len(chunks)), key=lambda n: -len(chunks[n].batches.active))  # then often no row has to move
    whole, places = _joined([chunks[n] for n in turn])
    return whole, [places[turn.index(n)] for n in range(len(chunks))]


def _joined(chunks: Sequence[Chunk]) -> tuple[Chunk, list[Tensor | slice]]:
    """The same in the order of the chunks, as far as steps allow it."""
    steps = [count for chunk in chunks for count in _steps(chunk.batches.active, len(chunk.ids))]
    order = sorted(range(len(steps)), key=lambda row: -steps[row])  # ties keep their order
    owner = [run for run, chunk in enumerate(chunks) for _ in chunk.listed]
    device, still = chunks[0].ids.device, order == list(range(len(steps)))
    at, whose = on_device([order, [owner[row] for row in order]], device)

    # its model is one run's: nobody may read it, see `why_apart`
    task = Task.cat([chunk.task._replace(ids=chunk.ids) for chunk in chunks])
    state = cat_states([chunk.state for chunk in chunks])
    if not still:
        task, state = task.rows(at), rows(state, at)
    params = torch.stack([chunk.task.model for chunk in chunks]).index_select(0, whose)
    batches = _stacked([chunk.batches for chunk in chunks])
    moved = {} if still else {name: v.index_select(0, at) for name, v in batches._asdict().items() if name != "active"}
    ids = [client for chunk in chunks for client in chunk.listed]
    assert task.ids is not None
    whole = Chunk(
        task.ids,
        [ids[row] for row in order],
        chunks[0].data,
        task,
        params,
        state,
        batches._replace(**moved),
        chunks[0].width,
    )
    place = {row: where for where, row in enumerate(order)}
    ends = [0]
    for chunk in chunks:
        ends.append(ends[-1] + len(chunk.ids))
    if still:
        return whole, [slice(a, b) for a, b in pairwise(ends)]
    return whole, [on_device([place[row] for row in range(a, b)], device) for a, b in pairwise(ends)]


def _stacked(parts: Sequence[Batches]) -> Batches:
    """Batches one below the other; shorter and narrower ones are padded, which takes no part in training."""
    longest, widest = (max(part.examples.shape[axis] for part in parts) for axis in (1, 2))
    alike = [list(some) for _, some in groupby(parts, key=lambda part: part.examples.shape[1:])]  # padded at once

    def stacked(read: Callable[[Batches], Tensor], rest: bool) -> Tensor:
        return _below([_padded(_below([read(part) for part in some]), longest, widest, rest) for some in alike])

    return Batches(
        examples=stacked(lambda part: part.examples, False),
        # a step that nobody takes has weights too, else they would be no numbers
        real=stacked(lambda part: part.real, True),
        steps=_below([part.steps for part in parts]),
        active=[sum(part.active[k] for part in parts if k < len(part.active)) for k in range(longest)],
        keys=stacked(lambda part: part.keys, False),
    )


def _below(values: list[Tensor]) -> Tensor:
    """One below the other."""
    return values[0] if len(values) == 1 else torch.cat(values)


def _padded(values: Tensor, longest: int, widest: int, rest: bool) -> Tensor:
    """Values [C, S, ...] with that many steps, whose numbers are `rest`, and examples in each, which are zeros."""
    if values.dim() > 2 and values.shape[2] < widest:
        values = F.pad(values, (0, widest - values.shape[2]))
    if values.shape[1] < longest:
        values = F.pad(values, (*(0,) * (2 * values.dim() - 4), 0, longest - values.shape[1]), value=rest)
    return values


def _steps(active: list[int], clients: int) -> list[int]:
    """How many steps each client takes, from how many clients (the first so many) take each step."""
    steps = [0] * clients
    for step, (now, after) in enumerate(zip(active, [*active[1:], 0])):
        steps[after:now] = [step + 1] * (now - after)
    return steps


def _kind(chunk: Chunk) -> tuple[Any, ...]:
    """What chunks must have in common beside their engines' kind."""
    task = chunk.task
    shapes = tuple((name, value.shape[1:]) for name, value in (*task.extras.items(), *chunk.state.items()))
    return task.round, task.rate, task.base_rate, task.mask is None, task.keep is None, chunk.width, shapes
