"""The reply of a cohort of nobody, which has the names and shapes of every reply."""

from __future__ import annotations

import torch

from fedloom.core.rows import expanded
from fedloom.core.rule import LocalRule
from fedloom.core.types import Setting, State, Task


def finish_nobody(rule: LocalRule, setting: Setting, task: Task) -> tuple[Task, State, State]:
    """The task, the extras and the new state of a cohort of nobody: names and shapes [0, ...] that every reply has."""
    none, nothing = task.model.expand(0, -1), torch.zeros(0, dtype=torch.int64, device=task.model.device)
    state = expanded(rule.client_state(setting, task.model), 0)
    task = task.rows(slice(0, 0))
    task = task._replace(extras={**task.extras, **expanded(rule.constants(setting), 0)})
    beside = rule.aside(task, state, none, nothing) if rule.traits.evolves else {}
    beside |= {} if rule.twin is None else {"own": none}
    task = task._replace(extras={**task.extras, **beside})
    _, extras, state = rule.finish(task, state, none, none, nothing)
    return task, extras, state
