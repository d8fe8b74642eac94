"""An engine over the ranks of torchrun: rank 0 leads and trains too, the others train the clients that it assigns."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.types import Reply, State, Task, listed as on_device
from fedloom.engine.client import initial_state
from fedloom.engine.local import Local
from fedloom.engine.ranks import Message, Ranks
from fedloom.errors import RunStopped
from fedloom.method import SLOTS

log = logging.getLogger("fedloom")

NO_OWNER = -1


class Distributed:
    """The engine of rank 0. Every rank has a `Local` with the states of the clients that it trains."""

    def __init__(self, local: Local, ranks: Ranks) -> None:
        self.local, self.ranks = local, ranks
        self._owner: Tensor | None = None  # [N] the rank that has each client's state; None before the first round
        self._stateless = False
        ours, ready = _facts_of(local), Message({"do": "ready", "way": local.plan.clients}, {})
        for rank, answer in self._ask(dict.fromkeys(self._others, ready)).items():
            if answer.facts != ours:
                raise RunStopped(f"rank {rank} has prepared {answer.facts}, rank 0 {ours}; give all ranks one command.")

    @property
    def _others(self) -> range:
        """All ranks but rank 0."""
        return range(1, self.ranks.size)

    def train(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """Train the cohort, each rank a part of it; replies are in the order of `ids`."""
        parts, device = self._assigned(ids, task), task.model.device
        here = ids.to(device, non_blocking=True) if task.ids is None else task.ids  # `ids` may be on the host
        at = {rank: on_device(places, device) for rank, places in enumerate(parts) if places}
        orders = {rank: _order(here[rows], task.rows(rows), chance) for rank, rows in at.items() if rank}
        lead = None if 0 not in at else lambda: _answer(self.local.train(ids[parts[0]], task.rows(at[0]), chance))
        answers = self._ask(orders, lead)
        replies = [_reply_of(here[at[rank]], answers[rank].tensors) for rank in sorted(answers)]
        whole = replies[0] if len(replies) == 1 else Reply.cat(replies, [at[rank] for rank in sorted(answers)])
        return whole._replace(ids=here)

    def personal(self, model: Tensor) -> Tensor | None:
        """The score of every client's own model [N]; each rank tests those that it keeps."""
        answers = self._ask(
            {rank: Message({"do": "personal"}, {"model": model}) for rank in self._others},
            lambda: _personal(self.local, model),
        )
        if not (tensors := answers[0].tensors):
            return None
        score = tensors["score"]
        for rank in self._others:
            theirs = answers[rank].tensors
            score[theirs["known"]] = theirs["score"][theirs["known"]]
        return score

    def settle(self, ids: list[int]) -> None:
        """Nothing: rounds on many ranks have a barrier."""

    def save(self) -> State:
        """The states of the clients of rank 0 alone: such a run cannot be resumed."""
        return self.local.save()

    def load(self, state: State) -> None:
        """Put back what `save` gave."""
        self.local.load(state)

    def describe(self) -> dict[str, Any]:
        """The plan of every rank, and the number of ranks."""
        return {**self.local.describe(), "engine": "distributed", "ranks": self.ranks.size}

    def _ask(self, orders: dict[int, Message], lead: Callable[[], Message] | None = None) -> dict[int, Message]:
        """Send orders, do rank 0's own part, and collect all answers; only then errors of any rank are raised."""
        for rank, order in orders.items():
            self.ranks.send(rank, order)
        answers: dict[int, Message] = {}
        try:
            if lead is not None:
                answers[0] = lead()
        finally:
            for rank in orders:
                answers[rank] = self.ranks.receive(rank, self.local.clients.data.x.device)
        for rank, answer in answers.items():
            if "failed" in answer.facts:
                log.info("rank %d: %s", rank, answer.facts["trace"])
                raise RunStopped(f"rank {rank} of {self.ranks.size} failed: {answer.facts['failed']}")
        return answers

    def _assigned(self, ids: Tensor, task: Task) -> list[list[int]]:
        """The places in the cohort that each rank trains; a client with a state stays on its first rank."""
        if self._owner is None:
            self._owner = torch.full((self.local.clients.setting.fleet.size,), NO_OWNER)
            self._stateless = not initial_state(self.local.clients.method, self.local.clients.setting, task.model)
        listed = ids.tolist()
        steps = self.local.clients.method.work.steps_of([self.local.clients.shards.sizes[client] for client in listed])
        work = [taken * share for taken, share in zip(steps, task.share.tolist())]
        places = assign(work, self._owner[listed].tolist(), self.ranks.size)
        if not self._stateless:
            for rank, mine in enumerate(places):
                self._owner[[listed[place] for place in mine]] = rank
        return places


def assign(work: list[float], owner: list[int], ranks: int) -> list[list[int]]:
    """Places for each rank: clients with an owner go there, others to the rank with least work, most work first."""
    load, places = [0.0] * ranks, [[] for _ in range(ranks)]  # type: list[float], list[list[int]]
    free = [place for place, rank in enumerate(owner) if rank == NO_OWNER]
    for place, rank in enumerate(owner):
        if rank != NO_OWNER:
            load[rank] += work[place]
            places[rank].append(place)
    for place in sorted(free, key=lambda place: -work[place]):
        rank = min(range(ranks), key=load.__getitem__)
        load[rank] += work[place]
        places[rank].append(place)
    return [sorted(mine) for mine in places]


def serve_rank(ranks: Ranks, build: Callable[[], Local]) -> Message:
    """Build the engine of a rank other than 0 and carry out rank 0's orders; the message that stops it is returned.

    Errors are sent to rank 0.
    """
    device, local, fault = torch.device("cpu"), None, None
    try:
        local = build()
        device = local.clients.data.x.device
    except BaseException as problem:  # noqa: BLE001  sent to rank 0 as the first answer
        fault = problem
    while (order := ranks.receive(0, device)).facts["do"] != "stop":
        try:
            if fault is not None:
                raise fault
            assert local is not None
            if order.facts["do"] == "ready" and local.turned is not None:
                local = local.turned(order.facts["way"])  # all ranks train as rank 0 does
            answer = _carry_out(local, order)
        except BaseException as problem:  # noqa: BLE001  rank 0 ends the run with this reason
            failed = f"{type(problem).__name__}: {problem}"
            answer = Message({"failed": failed, "trace": "".join(traceback.format_exception(problem))}, {})
        ranks.send(0, answer)
    return order


def stop_ranks(ranks: Ranks, facts: dict[str, Any], tensors: State | None = None) -> None:
    """Stop the other ranks, and send them the result of the run."""
    for rank in range(1, ranks.size):
        with suppress(RunStopped):  # a rank may be gone already
            ranks.send(rank, Message({"do": "stop", **facts}, tensors or {}))


def _carry_out(local: Local, order: Message) -> Message:
    """Carry out an order of rank 0."""
    if order.facts["do"] == "ready":
        return Message(_facts_of(local), {})
    if order.facts["do"] == "personal":
        return _personal(local, order.tensors["model"])
    task, device = _task_of(order), order.tensors["ids"].device
    return _answer(local.train(order.tensors["ids"], task, Chance(order.facts["seed"], task.round, device)))


def _facts_of(local: Local) -> dict[str, Any]:
    """Facts that must be equal on all ranks."""
    method, setting = local.clients.method, local.clients.setting
    slots = [type(getattr(method, slot)).__name__ for slot in SLOTS]
    examples = int(setting.fleet.examples.sum())
    return {"slots": slots, "parameters": setting.layout.total, "clients": setting.fleet.size, "examples": examples}


def _personal(local: Local, model: Tensor) -> Message:
    """The score of all clients [N], and the clients with a state here; nothing if no client has test examples."""
    score = local.personal(model)
    if score is None:
        return Message({}, {})
    return Message({}, {"score": score, "known": local.clients.states.known().to(model.device)})


_ROWS = ("mask", "keep", "share", "authorised")  # fields of a task with a row for each client
_NUMBERS = ("round", "rate", "base_rate", "trained")


def _order(ids: Tensor, task: Task, chance: Chance) -> Message:
    """The order to train the clients `ids` [c] on a task."""
    parts = {name: getattr(task, name) for name in _ROWS if getattr(task, name) is not None}
    extras = {f"extras.{name}": value for name, value in task.extras.items()}
    facts = {"do": "train", "seed": chance.seed, **{name: getattr(task, name) for name in _NUMBERS}}
    return Message(facts, {"model": task.model, "ids": ids, **parts, **extras})


def _task_of(order: Message) -> Task:
    """The task in an order."""
    found = order.tensors
    numbers = {name: order.facts[name] for name in _NUMBERS}
    parts: dict[str, Any] = {name: found.get(name) for name in _ROWS}
    return Task(model=found["model"], extras=without_prefix("extras.", found), ids=found["ids"], **parts, **numbers)


def _answer(reply: Reply) -> Message:
    """A reply as tensors by name."""
    mask = {} if reply.mask is None else {"mask": reply.mask}
    extras = {f"extras.{name}": value for name, value in reply.extras.items()}
    report = {f"report.{name}": value for name, value in reply.report.items()}
    return Message({}, {"params": reply.params, "arrived": reply.arrived, **mask, **extras, **report})


def _reply_of(ids: Tensor, found: State) -> Reply:
    """A rank's answer as the reply of the clients `ids` [c]."""
    extras, report = without_prefix("extras.", found), without_prefix("report.", found)
    return Reply(ids, found["params"], found.get("mask"), extras, report, found["arrived"])


def without_prefix(prefix: str, tensors: State) -> State:
    """The tensors whose names begin with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
