"""One round, in reading order: select, allocate, mask, send, train, receive, repair, aggregate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.method import SERVER_SLOTS, Memory, Method
from fedloom.types import Reply, Setting, State, Task, column

Engine = Callable[[Tensor, Task, Chance], Reply]  # who trains (on the host where that is known), and how


def play_round(
    method: Method, memory: Memory, model: Tensor, setting: Setting, engine: Engine, chance: Chance
) -> tuple[Tensor, Memory, Task, Reply]:
    """The model [P] and memory after one round, with what went down and what came up."""
    memory = dict(memory)

    def ask(slot: str, *facts: Any) -> Any:
        decision, memory[slot] = getattr(method, slot)(memory[slot], setting, *facts)
        return decision

    cohort = ask("select", chance)  # who
    ids, authorised = (fact.to(model.device, non_blocking=True) for fact in cohort)
    share = ask("allocate", ids, chance)  # how much each
    portion = ask("mask", model, ids, share, chance)  # which part
    task = Task(
        model=model,
        mask=portion.mask,
        keep=portion.keep,
        share=share,
        authorised=authorised,
        extras=method.local.brief(memory["local"], setting, ids),
        round=chance.round,
        rate=method.optimiser.rate_at(chance.round),
        base_rate=method.optimiser.rate,
        trained=setting.layout.trained,
        ids=ids,
    )
    reply = engine(cohort.ids, task, chance)  # train, wherever and however
    reply = read_unsent_as_unchanged(model, reply._replace(rate=task.rate, awaited=_awaited(task, reply)))
    for slot in SERVER_SLOTS:  # every part may learn from the replies
        memory[slot] = getattr(method, slot).observe(memory[slot], setting, model, reply)
    whole = ask("repair", model, reply)  # stand-ins for what is missing
    new = ask("aggregate", model, whole)
    new, memory["local"] = method.local.debrief(memory["local"], setting, model, new, whole)
    return new, memory, task, reply


def _awaited(task: Task, reply: Reply) -> Tensor:
    """Who was to send, in the order of the replies [C]."""
    if task.ids is None or reply.ids is task.ids:
        return task.authorised
    order = task.ids.argsort()
    return task.authorised[order[torch.searchsorted(task.ids[order], reply.ids)]]


def read_unsent_as_unchanged(model: Tensor, reply: Reply) -> Reply:
    """What was not sent is not read: the model's own numbers, and zeros for extras and reports, stand there instead."""
    arrived = reply.arrived
    if arrived.device.type == "cpu" and bool(arrived.all()):  # elsewhere asking would wait for the device
        if reply.mask is None:
            return reply
        return reply._replace(params=torch.where(reply.mask, reply.params, model))
    sent = column(arrived, reply.params) if reply.mask is None else reply.mask & column(arrived, reply.mask)
    return reply._replace(
        params=torch.where(sent, reply.params, model),
        mask=reply.mask if reply.mask is None else sent,
        extras=_of_the_arrived(arrived, reply.extras),
        report=_of_the_arrived(arrived, reply.report),
    )


def _of_the_arrived(arrived: Tensor, values: State) -> State:
    """The values [C, ...] with zeros where nothing arrived."""
    return {name: torch.where(column(arrived, v), v, torch.zeros_like(v)) for name, v in values.items()}
