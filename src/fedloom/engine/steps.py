"""All training steps of a chunk of clients, in the way that the plan has chosen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.core.rows import rows
from fedloom.core.types import Batch, Examples, Setting, State, Task
from fedloom.core.work import Batches
from fedloom.engine.cpu.native_steps import native_steps
from fedloom.engine.feed import Feed
from fedloom.engine.gradient.protocol import Gradient
from fedloom.engine.plan import StepPlan, StepWay
from fedloom.method import Method
from fedloom.neurons.map import NeuronMap

Taken = tuple[Tensor, Tensor]  # parameters after all steps [C, P], and the summed losses [C]


class Start(NamedTuple):
    """Where a chunk's steps begin, and all that they read."""

    method: Method
    setting: Setting
    gradient: Gradient
    plan: StepPlan
    data: Examples
    task: Task
    state: State  # of the local rule
    moments: State  # of an optimiser that keeps them; they change in place
    first: Tensor  # [C, P]
    batches: Batches
    neurons: NeuronMap | None = None  # where only the neurons of `task.keep` are trained or exist
    held: bool = False  # the steps themselves hold in place what the rule does not train
    aside: State = {}  # noqa: RUF012  numbers beside the model, of a rule that evolves; they change in place

    def task_at(self, some: slice) -> Task:
        """The task of some clients, with what is beside their models now."""
        part = self.task.rows(some)
        return part._replace(extras={**part.extras, **rows(self.aside, some)}) if self.aside else part

    def feed(self) -> Feed:
        """The batches of these steps."""
        setting = self.setting
        return Feed(self.data, self.batches, setting.goal, setting.transform, self.first.dtype)


Steps = Callable[[Start], Taken]


def take_steps(start: Start) -> Taken:
    """Take all steps in the first of the plan's ways that suits this chunk."""
    for way in start.plan.steps:
        if (taken := WAYS[way](start)) is not None:
            return taken
    raise AssertionError("autograd suits every chunk")


def _native(start: Start) -> Taken | None:
    """The C code."""
    rule = start.method.local
    return native_steps(start) if rule.only_shifts or not rule.traits.corrects else None


def _fused(start: Start) -> Taken | None:
    """Steps inside the backward pass."""
    rule = start.method.local  # it corrects as a twin may where the rule does not
    if rule.traits.corrects or (not start.held and rule.trains(start.task) is not None):
        return None  # else some parameters must be kept unchanged step by step
    rate, decay, descent = start.task.rate, start.method.optimiser.weight_decay, start.gradient.descent
    assert descent is not None  # else the plan has another way
    return descent(start.first, start.feed(), rate, 1 - rate * decay)


def _autograd(start: Start) -> Taken:
    """Step by step: differentiate, correct, move. Kept moments change in place."""
    method, task, first = start.method, start.task, start.first
    rule, optimiser, trained = method.local, method.optimiser, task.trained
    trains = None if rule.traits.evolves else rule.trains(task)
    moments = start.moments or optimiser.begin(first[:, :trained])
    params = first.clone(memory_format=torch.contiguous_format)
    losses = params.new_zeros(len(params))
    shift = rule.shift(task, start.state, first) if rule.only_shifts else None  # once, for all steps
    for step, batch in enumerate(start.feed()):
        now = slice(len(batch.y))  # clients that still have steps to take
        part, here = start.task_at(now), params[now]
        seen = rule.view(part, here)
        moving = None if seen is here else seen[:, trained:] == here[:, trained:]  # statistics that are not scaled
        aim = rule.objective(part, start.setting.goal.loss) if rule.traits.aims else None
        grads, loss = (start.gradient if aim is None else start.gradient.aimed(aim))(seen, batch)
        if moving is not None:  # in what ran
            here[:, trained:] = torch.where(moving, seen[:, trained:], here[:, trained:])
        if shift is not None:
            grads = shift.rows(now).added(first[now], here, grads)
        else:
            grads = rule.correct(part, rows(start.state, now), first[now], here, grads)
        turn = trains if trains is None else trains[now]
        if rule.traits.evolves:
            turn = rule.trains(part)
        if rule.traits.turns:
            turn = rule.turn(part, rows(start.state, now), step // start.batches.per_epoch[now])
        may = None if turn is None else turn[:, :trained]
        optimiser.step(rows(moments, now), here[:, :trained], grads[:, :trained], task.rate, may, rule.traits.evolves)
        if rule.traits.evolves:
            own = rows(start.state, now)
            for name, value in rule.after(part, own, here, partial(_gradient, start.gradient, batch)).items():
                start.aside[name][now] = value
        losses[now] += loss
    if trains is not None:  # running statistics outside the mask stay too
        params = torch.where(trains, params, first)
    return params, losses


def _gradient(gradient: Gradient, batch: Batch, params: Tensor) -> Tensor:
    """Gradients at other weights [C, P]."""
    return gradient(params, batch)[0]


WAYS: dict[StepWay, Callable[[Start], Taken | None]] = {"native": _native, "fused": _fused, "autograd": _autograd}
