"""An engine over the ranks of torchrun: rank 0 leads and plays along, the others train the clients it gives them."""

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

NOBODY = -1


class Distributed:
    """What rank 0 calls like a `Local`. Every rank has a `Local` with the states of the clients it trains."""

    def __init__(self, local: Local, ranks: Ranks) -> None:
        self.local, self.ranks = local, ranks
        self._owner: Tensor | None = None  # [N] which rank has each client's state; None: not asked yet
        self._stateless = False
        ours = _prepared(local)
        for rank, answer in self._ask({rank: Message({"do": "ready"}, {}) for rank in self._others}).items():
            if answer.facts != ours:
                raise RunStopped(f"rank {rank} has prepared {answer.facts}, rank 0 {ours}; give all ranks one command.")

    @property
    def _others(self) -> range:
        return range(1, self.ranks.size)

    def train(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """Train the cohort, each rank its share of it; replies stand in the order of `ids`."""
        shares, device = self._dealt(ids, task), task.model.device
        here = ids.to(device, non_blocking=True) if task.ids is None else task.ids  # `ids` may be on the host
        at = {rank: on_device(places, device) for rank, places in enumerate(shares) if places}
        orders = {rank: _order(here[rows], task.rows(rows), chance) for rank, rows in at.items() if rank}
        lead = None if 0 not in at else lambda: _answer(self.local.train(ids[shares[0]], task.rows(at[0]), chance))
        answers = self._ask(orders, lead)
        replies = [_reply_of(here[at[rank]], answers[rank].tensors) for rank in sorted(answers)]
        whole = replies[0] if len(replies) == 1 else Reply.cat(replies, [at[rank] for rank in sorted(answers)])
        return whole._replace(ids=here)

    def personal(self, model: Tensor) -> Tensor | None:
        """The accuracy of every client's own model [N]; each rank tries those it keeps."""
        answers = self._ask(
            {rank: Message({"do": "personal"}, {"model": model}) for rank in self._others},
            lambda: _personal(self.local, model),
        )
        if not (tensors := answers[0].tensors):
            return None
        accuracy = tensors["accuracy"]
        for rank in self._others:
            theirs = answers[rank].tensors
            accuracy[theirs["known"]] = theirs["accuracy"][theirs["known"]]
        return accuracy

    def save(self) -> State:
        """The states of the clients of rank 0 alone: such a run cannot be resumed."""
        return self.local.save()

    def load(self, state: State) -> None:
        """Put back what `save` gave."""
        self.local.load(state)

    def describe(self) -> dict[str, Any]:
        """What every rank does, and how many there are."""
        return {**self.local.describe(), "engine": "distributed", "ranks": self.ranks.size}

    def _ask(self, orders: dict[int, Message], lead: Callable[[], Message] | None = None) -> dict[int, Message]:
        """Give orders, do one's own part, and collect; whatever goes wrong anywhere, every answer is taken first."""
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

    def _dealt(self, ids: Tensor, task: Task) -> list[list[int]]:
        """The places of the cohort that each rank plays; whoever keeps a state stays where it is first met."""
        if self._owner is None:
            self._owner = torch.full((self.local.clients.setting.fleet.size,), NOBODY)
            self._stateless = not initial_state(self.local.clients.method, self.local.clients.setting, task.model)
        listed = ids.tolist()
        steps = self.local.clients.method.work.steps_of([self.local.clients.shards.sizes[client] for client in listed])
        work = [taken * share for taken, share in zip(steps, task.share.tolist())]
        places = deal(work, self._owner[listed].tolist(), self.ranks.size)
        if not self._stateless:
            for rank, mine in enumerate(places):
                self._owner[[listed[place] for place in mine]] = rank
        return places


def deal(work: list[float], owner: list[int], ranks: int) -> list[list[int]]:
    """Places for each rank: those with an owner go there, the others, most work first, where least is to be done."""
    load, places = [0.0] * ranks, [[] for _ in range(ranks)]  # type: list[float], list[list[int]]
    free = [place for place, rank in enumerate(owner) if rank == NOBODY]
    for place, rank in enumerate(owner):
        if rank != NOBODY:
            load[rank] += work[place]
            places[rank].append(place)
    for place in sorted(free, key=lambda place: -work[place]):
        rank = min(range(ranks), key=load.__getitem__)
        load[rank] += work[place]
        places[rank].append(place)
    return [sorted(mine) for mine in places]


def follow(ranks: Ranks, build: Callable[[], Local]) -> Message:
    """What every rank but the first does: prepare, then obey until rank 0 says stop, and how. Faults go to rank 0."""
    device, local, fault = torch.device("cpu"), None, None
    try:
        local = build()
        device = local.clients.data.x.device
    except BaseException as problem:  # noqa: BLE001  told to rank 0 when it asks
        fault = problem
    while (order := ranks.receive(0, device)).facts["do"] != "stop":
        try:
            if fault is not None:
                raise fault
            assert local is not None
            answer = _obey(local, order)
        except BaseException as problem:  # noqa: BLE001  rank 0 ends the run and says why
            failed = f"{type(problem).__name__}: {problem}"
            answer = Message({"failed": failed, "trace": "".join(traceback.format_exception(problem))}, {})
        ranks.send(0, answer)
    return order


def dismiss(ranks: Ranks, facts: dict[str, Any], tensors: State | None = None) -> None:
    """The run is over: tell the others what came of it."""
    for rank in range(1, ranks.size):
        with suppress(RunStopped):  # one that is gone needs no telling
            ranks.send(rank, Message({"do": "stop", **facts}, tensors or {}))


def _obey(local: Local, order: Message) -> Message:
    """Do what rank 0 asks for."""
    if order.facts["do"] == "ready":
        return Message(_prepared(local), {})
    if order.facts["do"] == "personal":
        return _personal(local, order.tensors["model"])
    task, device = _task_of(order), order.tensors["ids"].device
    return _answer(local.train(order.tensors["ids"], task, Chance(order.facts["seed"], task.round, device)))


def _prepared(local: Local) -> dict[str, Any]:
    """What must be the same on all ranks."""
    method, setting = local.clients.method, local.clients.setting
    slots = [type(getattr(method, slot)).__name__ for slot in SLOTS]
    examples = int(setting.fleet.examples.sum())
    return {"slots": slots, "parameters": setting.layout.total, "clients": setting.fleet.size, "examples": examples}


def _personal(local: Local, model: Tensor) -> Message:
    """Accuracy of all clients [N], and those whose own models are here; nothing where nobody has test examples."""
    accuracy = local.personal(model)
    if accuracy is None:
        return Message({}, {})
    return Message({}, {"accuracy": accuracy, "known": local.clients.states.known().to(model.device)})


_ROWS = ("mask", "keep", "share", "authorised")  # of a task, for each of the cohort
_NUMBERS = ("round", "rate", "base_rate", "trained")


def _order(ids: Tensor, task: Task, chance: Chance) -> Message:
    """A task for some clients."""
    parts = {name: getattr(task, name) for name in _ROWS if getattr(task, name) is not None}
    extras = {f"extras.{name}": value for name, value in task.extras.items()}
    facts = {"do": "train", "seed": chance.seed, **{name: getattr(task, name) for name in _NUMBERS}}
    return Message(facts, {"model": task.model, "ids": ids, **parts, **extras})


def _task_of(order: Message) -> Task:
    """The task that was sent."""
    found = order.tensors
    numbers = {name: order.facts[name] for name in _NUMBERS}
    parts: dict[str, Any] = {name: found.get(name) for name in _ROWS}
    return Task(model=found["model"], extras=named("extras.", found), ids=found["ids"], **parts, **numbers)


def _answer(reply: Reply) -> Message:
    """What some clients send back, as tensors by name."""
    mask = {} if reply.mask is None else {"mask": reply.mask}
    extras = {f"extras.{name}": value for name, value in reply.extras.items()}
    report = {f"report.{name}": value for name, value in reply.report.items()}
    return Message({}, {"params": reply.params, "arrived": reply.arrived, **mask, **extras, **report})


def _reply_of(ids: Tensor, found: State) -> Reply:
    """A rank's answer as the reply of the clients `ids` [c]."""
    extras, report = named("extras.", found), named("report.", found)
    return Reply(ids, found["params"], found.get("mask"), extras, report, found["arrived"])


def named(prefix: str, tensors: State) -> State:
    """Those whose names begin so, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
