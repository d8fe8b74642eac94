"""How good is a model on a test set?"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from fedloom.client import Examples
from fedloom.types import Setting

BATCH = 1024  # examples at a time


class Score(NamedTuple):
    """Everything stays on the device until it is read."""

    accuracy: Tensor  # [] top-1
    top5: Tensor  # []
    loss: Tensor  # [] mean
    per_class: Tensor  # [classes] accuracy within each class; NaN where a class has no example


def evaluate(setting: Setting, model: Tensor, data: Examples, classes: int) -> Score:
    """Score one model [P] on every example."""
    tensors = setting.layout.split(model)
    module = setting.module.eval()
    first, top5, loss = [], [], []
    with torch.no_grad():
        for a in range(0, len(data.y), BATCH):
            x, y = data.x[a : a + BATCH], data.y[a : a + BATCH]
            output = functional_call(module, tensors, (x,))
            own, before = output.gather(1, y[:, None]), torch.arange(output.shape[1], device=y.device) < y[:, None]
            rank = ((output > own) | (output == own) & before).sum(1)  # classes that come first; ties as in argmax
            rank = torch.where(output.isfinite().all(1), rank, 5)  # a diverged model is right about nothing
            first.append(rank < 1)
            top5.append(rank < 5)
            loss.append(setting.loss(output, y))
        right = torch.cat(first).to(torch.float64)
        hits = torch.zeros(classes, dtype=torch.float64, device=right.device).index_add_(0, data.y, right)
        seen = torch.bincount(data.y, minlength=classes)
        return Score(right.mean(), torch.cat(top5).double().mean(), torch.cat(loss).double().mean(), hits / seen)
