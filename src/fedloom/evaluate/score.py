"""Evaluation of a model on a test set: the loss and the goal's metrics."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from fedloom.accel.capture import Captured
from fedloom.accel.machine import at_once
from fedloom.core.metric import Gathered, Summed
from fedloom.core.types import Examples, Setting
from fedloom.engine.cpu.native_steps import native_outputs


class Score(NamedTuple):
    """Scores, which stay on the device until they are read."""

    loss: Tensor  # [] mean, weighted as in training
    metrics: dict[str, Tensor]  # by name: [], or [classes] where a metric has a value for each class


def evaluate(setting: Setting, model: Tensor, data: Examples, outputs: int) -> Score:
    """Score one model [P], whose answer is `outputs` wide, on all examples."""
    gathered = [one for one in setting.goal.metrics if isinstance(one, Gathered)]
    seen = [one.begin() for one in gathered]
    if gathered or data.x.device != model.device:  # examples on another device are copied batch by batch
        found = _score((model,), setting, data.x, data.y, outputs, tuple(zip(gathered, seen)))
    else:
        found = _scored((model,), setting, data.x, data.y, outputs, ())
    loss, *sums = found
    summed = [one for one in setting.goal.metrics if isinstance(one, Summed)]
    values = {one.name: one.finish(total) for one, total in zip(summed, sums)}
    values = {name: value[:outputs] if value.dim() else value for name, value in values.items()}
    values |= {one.name: torch.tensor(one.value(own), dtype=torch.float64) for one, own in zip(gathered, seen)}
    return Score(loss, {one.name: values[one.name] for one in setting.goal.metrics})


def _score(
    models: tuple[Tensor, ...],
    setting: Setting,
    x_all: Tensor,
    y_all: Tensor,
    outputs: int,
    gathered: tuple[tuple[Gathered, Any], ...],
) -> tuple[Tensor, ...]:
    """The mean loss, and the totals of each metric that is summed."""
    (model,), data, goal = models, Examples(x_all, y_all), setting.goal
    tensors = setting.layout.split(model)
    module, batch = setting.module.eval(), at_once(data.x, outputs * y_all[:1].numel())
    summed = [one for one in goal.metrics if isinstance(one, Summed)]
    losses, weights = [], []
    totals: list[list[Tensor]] = [[] for _ in summed]
    with torch.no_grad():
        for a in range(0, len(data.y), batch):
            x, y = (part[a : a + batch].to(model.device, non_blocking=True) for part in data)  # from any device
            if x.device.type == "cuda" and x.dim() == 4:
                x = x.contiguous(memory_format=torch.channels_last)  # the fastest layout for its convolutions
            quick = native_outputs(setting, setting.layout, model[None], x[None])
            output = functional_call(module, tensors, (x,)) if quick is None else quick[0]
            losses.append(goal.loss(output, y))
            if goal.weigh is not None:
                weights.append(goal.weigh(y))
            for own, metric in zip(totals, summed):
                own.append(metric.totals(output, y))
            for whole, seen in gathered:
                whole.add(seen, output, y)
        loss = torch.cat(losses).double()
        if weights:
            weight = torch.cat(weights).double()
            loss = (loss * weight).sum() / weight.sum()
        else:
            loss = loss.mean()
        return loss, *(torch.stack(own).sum(0) for own in totals)


_scored = Captured(_score)
