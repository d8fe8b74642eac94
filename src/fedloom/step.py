"""One step of rounds without a barrier, in reading order: ask, wait, train what is needed, take the replies.

A round with a barrier asks a cohort and waits for it. Here clients are in flight all the time, and a step is made when
the method's `pace` says so, of the replies that have come by then, some of them to older models. Between two steps the
model does not change, so clients that were asked then have one model, one rate and one chance, and are trained
together when the first of their replies is needed. What a task takes is known beforehand, so time runs ahead of
training. After a step everything follows from the flight and the memory, which a checkpoint holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fedloom.asking import Asking
from fedloom.chance import Chance
from fedloom.core.compact import compact
from fedloom.core.costs import Costs
from fedloom.core.flight import ARRIVED, TOO_OLD, UNREACHED, Asked, Flight, Version, pieces_of, task_of
from fedloom.core.rows import cat_rows, scattered
from fedloom.core.staleness import by_numbers, count_step, no_counts
from fedloom.core.types import Reply, Setting, State, Task
from fedloom.method import Memory, Method
from fedloom.round import take_replies

if TYPE_CHECKING:
    from fedloom.engine.protocol import Timed


class Step(NamedTuple):
    """A step that was made, with a row for every task that it closed."""

    model: Tensor  # [P] after it
    memory: Memory
    task: Task
    reply: Reply


def begin_flight(method: Method, setting: Setting, model: Tensor) -> Flight:
    """Nobody is in flight, and the model is the initial one."""
    counted = method.stale.discounts and method.stale.counts_numbers(method)
    return Flight(setting.fleet.size, Version(0, model, 0, no_counts(model) if counted else None), method.pace.slots)


def play_step(method: Method, memory: Memory, flight: Flight, setting: Setting, world: Timed, seed: int) -> Step:
    """Ask and wait until a step is due, and make it; `flight` changes in place."""
    chance, pace, quiet = Chance(seed, flight.version.number + 1, flight.version.model.device), method.pace, False
    asking = Asking(method, memory, setting, world, flight, chance)
    while True:
        drop_too_old(flight, pace.oldest)
        taken = pace.due(asking.memory["pace"], flight, quiet)
        if taken is not None:
            break
        asking.fill()
        quiet = not world.wait(flight, pace, pace.alarm(asking.memory["pace"], flight))
    if not taken and flight.now == flight.since:  # nobody was there: the next ones are asked a while later
        flight.advance(flight.now + world.idle)
    return make_step(method, asking.memory, flight, taken, setting, world, chance)


def drop_too_old(flight: Flight, oldest: int | None) -> None:
    """Let replies that wait and have become too stale not count."""
    if oldest is not None:
        for task in [task for task in flight.waiting if flight.staleness(task) > oldest]:
            flight.drop(task, TOO_OLD)


def make_step(
    method: Method,
    memory: Memory,
    flight: Flight,
    taken: Sequence[Asked],
    setting: Setting,
    world: Timed,
    chance: Chance,
) -> Step:
    """Train what is needed, take the replies, and close their tasks with those that ended without counting."""
    version, closed = flight.version, flight.closing(taken, method.pace.recall)
    if world.foresees:
        train_needed(method, flight, closed, world, chance)
    world.settle([task.client for task in closed])
    task, reply = replies_of(method, flight, closed, world, chance)
    model = version.model
    if closed:
        model, memory, reply = take_replies(method, memory, task, setting, reply, chance)
    counts = None if version.counts is None else count_step(version.counts, reply)
    flight.close(closed, Version(version.number + 1, model, version.moves + bool(taken), counts))
    compact(flight)
    return Step(model, memory, task, reply)


def train_needed(method: Method, flight: Flight, closed: Sequence[Asked], world: Timed, chance: Chance) -> None:
    """Train the clients whose replies or states are needed now, and all others that were sent the same version.

    Clients whose replies were lost are trained too, as in a round: their states move on. If the pace does not hold
    rows, the others of a version are trained when they are needed themselves.
    """
    needed = [task for task in closed if task.received and task.trained is None]
    if method.pace.holds_rows:
        bases = {task.base for task in needed}
        needed = [t for t in flight.tasks.values() if t.base in bases and t.received and t.trained is None]
    for base in sorted({task.base for task in needed}):
        some = sorted((task for task in needed if task.base == base), key=lambda task: task.client)
        ids = torch.tensor([task.client for task in some])
        reply = world.train_asked(ids, task_of(some), chance._replace(round=base + 1))
        for place, task in enumerate(some):
            task.trained, task.place = reply, place


def replies_of(
    method: Method, flight: Flight, closed: Sequence[Asked], world: Timed, chance: Chance
) -> tuple[Task, Reply]:
    """The tasks that a step closes and their replies, put on the model as it is now."""
    model, device = flight.version.model, flight.version.model.device
    ids = torch.tensor([task.client for task in closed], dtype=torch.int64)
    here = ids.to(device, non_blocking=True)
    task = _task(method, closed, here, len(flight.free), model, chance)
    taken = [place for place, one in enumerate(closed) if one.fate == ARRIVED]
    at = torch.tensor(taken, dtype=torch.int64, device=device)
    if taken:
        reply = _rebased(method, flight, [closed[place] for place in taken], task.rows(at))
    elif closed:
        reply = world.unanswered(ids, closed[0].wave.task._replace(model=model))
    else:
        none = model.expand(0, -1)
        reply = Reply(here, none, None, {}, {"steps": here, "loss": model.new_zeros(0)}, here.bool())
    staleness, base = reply.staleness, torch.tensor([one.base for one in closed], dtype=torch.int64, device=device)
    if 0 < len(taken) < len(closed):
        reply = reply.scatter(at, here, model)
        staleness = None if staleness is None else scattered(staleness, at, len(closed))
    reply = world.delivered(reply, pieces_of(closed))
    costs, columns = _costs(flight, closed, world, device)
    arrived = torch.zeros(len(closed), dtype=torch.bool, device=device).index_fill(0, at, True)
    report = {**reply.report, **columns}
    return task, reply._replace(
        ids=here, arrived=arrived, report=report, costs=costs, base=base, staleness=staleness, rate=task.rate
    )


def _task(method: Method, closed: Sequence[Asked], ids: Tensor, fleet: int, model: Tensor, chance: Chance) -> Task:
    """The step's task: what its clients were sent, as if it had been now; without what the local rule added."""
    if closed:
        whole = task_of(closed, extras=False)
    else:
        none = model.new_zeros(0, dtype=torch.float32)
        whole = Task(model, None, None, none, none.bool(), {}, 0, 0.0, method.optimiser.rate, 0)
    rate = method.optimiser.rate_at(chance.round)
    every = len(closed) == fleet
    return whole._replace(model=model, round=chance.round, rate=rate, ids=ids, all_send=True, everyone=every)


def _rebased(method: Method, flight: Flight, taken: Sequence[Asked], task: Task) -> Reply:
    """The replies that a step takes, in the order of `taken`, with their staleness; `task` has their rows."""
    now, stale = flight.version, method.stale
    groups: dict[tuple[int, int], list[int]] = {}  # places by training and version
    for place, one in enumerate(taken):
        groups.setdefault((one.base, id(one.trained)), []).append(place)
    parts, at, staleness = [], [], []
    for places in groups.values():
        some, rows = [taken[place] for place in places], torch.tensor(places, device=now.model.device)
        first = some[0]
        assert first.trained is not None  # `train_needed` was called
        part = first.trained.rows(torch.tensor([one.place for one in some], device=now.model.device))
        steps = torch.full((len(some),), flight.staleness(first), device=now.model.device)
        sent = first.wave.version
        if flight.staleness(first):
            part = stale.rebase(now.model, sent.model, part, None if task.mask is None else task.mask[rows])
        if now.counts is not None and sent.counts is not None:
            steps = by_numbers(now.counts, sent.counts.expand(len(some), -1), steps)
        parts.append(part)
        at.append(rows)
        staleness.append(steps)
    return Reply.cat(parts, at)._replace(staleness=cat_rows(staleness, at))


def _costs(flight: Flight, closed: Sequence[Asked], world: Timed, device: torch.device) -> tuple[Costs, State]:
    """What the tasks cost, with the interval that the step ends, and the columns of it that methods read in reports."""
    down, up, columns = world.costs_of(closed, device)

    def column(values: Sequence[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)

    asked = {
        "fate": column([one.fate for one in closed], torch.int64),
        "serial": column([one.serial for one in closed], torch.int64),
        "asked": column([one.asked for one in closed], torch.float64),
        "base": column([one.base for one in closed], torch.int64),
        "staleness": column([flight.staleness(one) for one in closed], torch.int64),
        "waited": column([flight.now - one.end if one.fate == ARRIVED else 0.0 for one in closed], torch.float64),
    }
    trained = column([one.fate not in UNREACHED for one in closed], torch.bool)
    duration = torch.tensor(flight.now - flight.since, dtype=torch.float64, device=device)
    costs = Costs(down, up, trained, columns["bytes_up"], {**columns, **asked}, duration, flight.end_interval())
    return costs, columns
