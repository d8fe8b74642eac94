"""A small trial on which gradients are compared with plain PyTorch."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedloom.core.types import Batch, Examples, Setting
from fedloom.engine.feed import weights
from fedloom.layout import flatten


def trial(setting: Setting, data: Examples) -> tuple[Tensor, Batch]:
    """The parameters of two different clients [2, P] and a batch in which one example is padding (float64)."""
    start = flatten(setting.module, setting.layout).to(data.x.device, torch.float64)
    params = torch.stack((start, start * 1.1))
    count = min(4, len(data.y))
    x, y = (torch.stack((t[:count], t[-count:])) for t in data)
    real = torch.ones(2, count, device=x.device, dtype=torch.bool)
    if count > 2:
        real[1, -1] = False
    weight = weights(setting.goal, y, real, torch.float64)
    x = x.double() if x.is_floating_point() else x
    y = y.double() if y.is_floating_point() else y
    return params, Batch(x, y, weight, torch.tensor([1, 2], device=x.device))


def largest_difference(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The largest difference of two tensors of a pair, relative to the largest number of the second."""
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-6)) for a, b in pairs)
