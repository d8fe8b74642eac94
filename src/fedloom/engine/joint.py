"""Joint training of several runs, whose clients become rows of one matrix: a step of many rows costs little more.

Each run gathers its own chunks and gets its own rows back; only the training between is shared. Rows are independent,
so a run's numbers are those that it has alone, except for the rounding of matrix products of another size.
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


class Answer(NamedTuple):
    """The result for one run."""

    learnt: list[tuple[Learnt, State]]  # for each of its chunks
    seconds: float  # its share of the training, by rows


class _Waiting(NamedTuple):
    """A chunk that waits to be trained."""

    asker: int  # the run's place in the call
    place: int  # among the asker's chunks
    lead: Local
    chunk: Chunk


class JointTraining:
    """Trains the chunks of several runs, as many together as match and fit."""

    def __init__(self) -> None:
        self._leads: list[Local] = []  # for each kind of training, the engine that trains all its chunks

    def __call__(self, asked: Sequence[tuple[Local, list[Chunk]]]) -> list[Answer]:
        """Train all chunks of the runs; answers are in the order of `asked`."""
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
            learnt = learn_jointly(group[0].lead, [one.chunk for one in group])
            each = (time.perf_counter() - began) / sum(len(one.chunk.ids) for one in group)
            for one, own in zip(group, learnt):
                found[one.asker][one.place] = own
                seconds[one.asker] += each * len(one.chunk.ids)
        return [Answer(*each) for each in zip(found, seconds)]

    def _lead(self, engine: Local) -> Local:
        """The engine that trains the chunks of `engine`; always the same one, so that captured steps are used again."""
        for lead in self._leads:
            if lead is engine or trains_like(lead, engine):
                return lead
        self._leads.append(engine)
        return engine


def _next_group(waiting: list[_Waiting]) -> tuple[list[_Waiting], list[_Waiting]]:
    """The first chunk with those that can be trained with it, as many as fit, and all other chunks."""
    lead, kind = waiting[0].lead, _kind(waiting[0].chunk)
    group, others, room = [], [], max(lead.chunk, len(waiting[0].chunk.ids))
    for one in waiting:
        if one.lead is lead and len(one.chunk.ids) <= room and _kind(one.chunk) == kind:
            group.append(one)
            room -= len(one.chunk.ids)
        else:
            others.append(one)
    return group, others


def trains_like(one: Local, other: Local) -> bool:
    """Whether rows of these engines may be trained in one matrix: they share network, data, plan and rule."""
    shared = one.gradient is other.gradient and one.clients.data.x is other.clients.data.x and one.plan == other.plan
    if not shared or why_apart(one) is not None:
        return False
    return training_parts(one.clients.method) == training_parts(other.clients.method)


def training_parts(method: Method) -> tuple[Any, ...]:
    """The parts of a method that training reads."""
    return method.local, method.optimiser, method.upload.sends_what_came


def why_apart(engine: Local) -> str | None:
    """Why an engine's rows cannot be trained with another's; None: they can."""
    if engine.plan.clients != "together":
        return "its clients train by themselves"
    if not engine.clients.shards.resident:
        return "its examples do not fit where they are trained on"
    return why_rule_apart(engine.clients.method)


def why_rule_apart(method: Method) -> str | None:
    """Why a method's rows cannot be trained with another run's; a user's own rule may read `task.model`."""
    if not method.pace.barrier:
        return "rounds without a barrier train when replies are needed, each run at its own time"
    if method.local.traits.reads_model:
        return "the local rule reads the global model, which differs from run to run"
    names = [type(one).__name__ for one in method.local.members() if not type(one).__module__.startswith("fedloom.")]
    return f"{names[0]} may read the global model, which differs from run to run" if names else None


def learn_jointly(lead: Local, chunks: Sequence[Chunk]) -> list[tuple[Learnt, State]]:
    """Train chunks of one kind together; the result of each, in order."""
    if len(chunks) == 1:
        return [lead.learn(chunks[0])]
    whole, places = cat_chunks(chunks)
    learnt, state = lead.learn(whole)
    return [
        (Learnt(learnt.first[at], learnt.sent[at], rows(learnt.extras, at), learnt.losses[at]), rows(state, at))
        for at in places
    ]


def cat_chunks(chunks: Sequence[Chunk]) -> tuple[Chunk, list[Tensor | slice]]:
    """Concatenate chunks, with rows in falling order of steps; the whole, and the places of each chunk's rows in it."""
    turn = sorted(range(len(chunks)), key=lambda n: -len(chunks[n].batches.active))  # then often no row has to move
    whole, places = _cat_in_order([chunks[n] for n in turn])
    return whole, [places[turn.index(n)] for n in range(len(chunks))]


def _cat_in_order(chunks: Sequence[Chunk]) -> tuple[Chunk, list[Tensor | slice]]:
    """Concatenate chunks in the order given; rows move only where their numbers of steps are out of order."""
    steps = [count for chunk in chunks for count in _steps(chunk.batches.active, len(chunk.ids))]
    order = sorted(range(len(steps)), key=lambda row: -steps[row])  # ties keep their order
    owner = [run for run, chunk in enumerate(chunks) for _ in chunk.listed]
    device, still = chunks[0].ids.device, order == list(range(len(steps)))
    at, whose = on_device([order, [owner[row] for row in order]], device)

    # `task.model` is that of one run; `why_rule_apart` refuses rules that read it
    task = Task.cat([chunk.task._replace(ids=chunk.ids) for chunk in chunks])
    state = cat_states([chunk.state for chunk in chunks])
    if not still:
        task, state = task.rows(at), rows(state, at)
    params = torch.stack([chunk.task.model for chunk in chunks]).index_select(0, whose)
    batches = _cat_batches([chunk.batches for chunk in chunks])
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


def _cat_batches(parts: Sequence[Batches]) -> Batches:
    """Concatenate batches; shorter and narrower ones are padded with steps and examples that change nothing."""
    longest, widest = (max(part.examples.shape[axis] for part in parts) for axis in (1, 2))
    same_shape = [list(some) for _, some in groupby(parts, key=lambda part: part.examples.shape[1:])]  # padded at once

    def cat_padded(read: Callable[[Batches], Tensor], rest: bool) -> Tensor:
        return _cat([_padded(_cat([read(part) for part in some]), longest, widest, rest) for some in same_shape])

    return Batches(
        examples=cat_padded(lambda part: part.examples, False),
        # padded steps count as real, else their weights would be divided by 0
        real=cat_padded(lambda part: part.real, True),
        steps=_cat([part.steps for part in parts]),
        active=[sum(part.active[k] for part in parts if k < len(part.active)) for k in range(longest)],
        keys=cat_padded(lambda part: part.keys, False),
        per_epoch=_cat([part.per_epoch for part in parts]),
    )


def _cat(values: list[Tensor]) -> Tensor:
    """Concatenate; a single tensor is returned as it is."""
    return values[0] if len(values) == 1 else torch.cat(values)


def _padded(values: Tensor, longest: int, widest: int, rest: bool) -> Tensor:
    """Pad values [C, S, ...] to `longest` steps, filled with `rest`, and to `widest` examples, filled with zeros."""
    if values.dim() > 2 and values.shape[2] < widest:
        values = F.pad(values, (0, widest - values.shape[2]))
    if values.shape[1] < longest:
        values = F.pad(values, (*(0,) * (2 * values.dim() - 4), 0, longest - values.shape[1]), value=rest)
    return values


def _steps(active: list[int], clients: int) -> list[int]:
    """The number of steps of each client, given how many clients take each step (always the first ones)."""
    steps = [0] * clients
    for step, (now, after) in enumerate(zip(active, [*active[1:], 0])):
        steps[after:now] = [step + 1] * (now - after)
    return steps


def _kind(chunk: Chunk) -> tuple[Any, ...]:
    """What chunks of the same engine must have in common to be trained together."""
    task = chunk.task
    shapes = tuple((name, value.shape[1:]) for name, value in (*task.extras.items(), *chunk.state.items()))
    return task.round, task.rate, task.base_rate, task.mask is None, task.keep is None, chunk.width, shapes
