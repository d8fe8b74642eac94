"""Evaluation of a model on a test set: accuracy, top-5, loss, and accuracy within classes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from fedloom.accel.capture import Captured
from fedloom.accel.machine import at_once
from fedloom.core.types import Examples, Setting
from fedloom.engine.cpu.native_steps import native_outputs


class Score(NamedTuple):
    """Scores, which stay on the device until they are read."""

    accuracy: Tensor  # [] top-1
    top5: Tensor  # []
    loss: Tensor  # [] mean
    per_class: Tensor  # [classes] accuracy within each class; NaN where a class has no example


def evaluate(setting: Setting, model: Tensor, data: Examples, classes: int) -> Score:
    """Score one model [P] on all examples."""
    score = _scored if data.x.device == model.device else _score  # examples on another device are copied batch by batch
    (found,) = score((model,), setting, data.x, data.y, classes)
    return Score(found[0], found[1], found[2], found[3:])


def _score(
    models: tuple[Tensor, ...], setting: Setting, x_all: Tensor, y_all: Tensor, classes: int
) -> tuple[Tensor, ...]:
    """The scores of `evaluate`, concatenated."""
    (model,), data = models, Examples(x_all, y_all)
    tensors = setting.layout.split(model)
    module, batch = setting.module.eval(), at_once(data.x)
    first, top5, loss = [], [], []
    with torch.no_grad():
        for a in range(0, len(data.y), batch):
            x, y = (part[a : a + batch].to(model.device, non_blocking=True) for part in data)  # from any device
            if x.device.type == "cuda" and x.dim() == 4:
                x = x.contiguous(memory_format=torch.channels_last)  # the fastest layout for its convolutions
            quick = native_outputs(setting, setting.layout, model[None], x[None])
            output = functional_call(module, tensors, (x,)) if quick is None else quick[0]
            own, before = output.gather(1, y[:, None]), torch.arange(output.shape[1], device=y.device) < y[:, None]
            rank = ((output > own) | (output == own) & before).sum(1)  # classes before the label; ties as in argmax
            rank = torch.where(output.isfinite().all(1), rank, 5)  # a diverged model is never right
            first.append(rank < 1)
            top5.append(rank < 5)
            loss.append(setting.loss(output, y))
        right = torch.cat(first).to(torch.float64)
        none = torch.zeros(classes, dtype=torch.float64, device=right.device)
        hits, seen = (none.index_add(0, data.y.to(model.device), values) for values in (right, torch.ones_like(right)))
        means = (right.mean(), torch.cat(top5).double().mean(), torch.cat(loss).double().mean())
        return (torch.cat((torch.stack(means), hits / seen)),)


_scored = Captured(_score)
