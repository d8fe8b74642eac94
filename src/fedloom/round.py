"""One round, in reading order: select, allocate, mask, send, train, admit, repair, aggregate."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.cohort import once, recognised
from fedloom.core.types import Cohort, Reply, Setting, Task
from fedloom.core.unsent import read_unsent_as_unchanged
from fedloom.method import SERVER_SLOTS, Memory, Method

if TYPE_CHECKING:
    from fedloom.engine.protocol import Engine


def play_round(
    method: Method, memory: Memory, model: Tensor, setting: Setting, engine: Engine, chance: Chance
) -> tuple[Tensor, Memory, Task, Reply]:
    """The model [P] and memory after one round, with the task that went down and the reply that came up."""
    ids, task, memory = ask_cohort(method, memory, model, setting, chance)
    reply = engine.train(ids, task, chance)  # train, wherever and however
    new, memory, reply = take_replies(method, memory, task, setting, reply, chance)
    return new, memory, task, reply


def ask_cohort(
    method: Method, memory: Memory, model: Tensor, setting: Setting, chance: Chance
) -> tuple[Tensor, Task, Memory]:
    """The first half of a round: the cohort's ids [C] (on the host if drawn there), its task, and the memory."""
    memory, ask = _asking(method, memory, setting)
    cohort = ask("select", chance)  # who
    task, memory = task_for(method, memory, model, setting, cohort, chance)
    return cohort.ids, task, memory


def task_for(
    method: Method, memory: Memory, model: Tensor, setting: Setting, cohort: Cohort, chance: Chance
) -> tuple[Task, Memory]:
    """The task of the clients that were chosen, and the memory."""
    memory, ask = _asking(method, memory, setting)
    given = [fact for fact in cohort if fact is not None]
    on_host = all(fact.device.type == "cpu" for fact in given)  # where reading does not wait for a device
    ids, authorised, *chosen = (fact.to(model.device, non_blocking=True) for fact in given)
    share = chosen[0] if chosen else ask("allocate", ids, chance)  # how much each
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
        all_send=on_host and bool(cohort.authorised.all()),
        everyone=on_host and torch.equal(cohort.ids, torch.arange(setting.fleet.size)),
    )
    return task, memory


def take_replies(
    method: Method, memory: Memory, task: Task, setting: Setting, reply: Reply, chance: Chance
) -> tuple[Tensor, Memory, Reply]:
    """The second half of a round: the model [P] and memory after it, and the replies as they were counted."""
    memory, ask = _asking(method, memory, setting)
    assert task.ids is not None
    model, cohort = task.model, Cohort(task.ids, task.authorised)
    everyone = task.everyone and reply.ids is task.ids
    reply = recognised(cohort, reply._replace(rate=task.rate, chance=chance, everyone=everyone))
    whole = task.all_send and reply.arrived is task.authorised  # nothing was lost, known without reading tensors
    reply = read_unsent_as_unchanged(model, reply, whole)
    reply = once(cohort, model, ask("admit", model, task, reply))  # refuse what cannot be right
    for slot in SERVER_SLOTS:  # every part may learn from the replies
        memory[slot] = getattr(method, slot).observe(memory[slot], setting, model, reply)
    mended = ask("repair", model, reply)  # stand-ins for missing replies
    mended = method.stale.lessen(model, mended)  # replies to older models may count less
    new = ask("aggregate", model, mended)
    new, memory["local"] = method.local.debrief(memory["local"], setting, model, new, mended)
    new, memory["mask"] = method.mask.settle(memory["mask"], setting, new, mended)
    return new, memory, reply


def _asking(method: Method, memory: Memory, setting: Setting) -> tuple[Memory, Callable[..., Any]]:
    """A copy of the memory, and a function that lets a slot decide and updates its memory in the copy."""
    memory = dict(memory)

    def ask(slot: str, *facts: Any) -> Any:
        decision, memory[slot] = getattr(method, slot)(memory[slot], setting, *facts)
        return decision

    return memory, ask
