"""A small trial on which gradients are compared with plain PyTorch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from fedloom.core.types import Batch, Examples, Setting
from fedloom.engine.feed import weights
from fedloom.layout import base_of, copied, flatten

LARGEST = 2**27  # numbers of a base that is copied for the trial: 1 GiB in float64
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 3e-2}


def trial_of(setting: Setting) -> tuple[Setting, torch.dtype, float]:
    """The setting to try gradients on, the type of the numbers, and by how much gradients may differ.

    The base is copied to float64. One that is too large for a copy stays as it is, and so do its rounding errors.
    """
    base = [value for value in base_of(setting.module, setting.layout).values() if value.is_floating_point()]
    if all(value.dtype == torch.float64 for value in base):
        return setting, torch.float64, TOLERANCE[torch.float64]
    if sum(value.numel() for value in base) > LARGEST:
        own = setting.module.get_parameter(setting.layout.parameters[0]).dtype
        return setting, own, max(TOLERANCE.get(value.dtype, TOLERANCE[torch.bfloat16]) for value in base)
    return replace(setting, module=copied(setting.module).double()), torch.float64, TOLERANCE[torch.float64]


def trial(setting: Setting, data: Examples, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Batch]:
    """The parameters of two different clients [2, P] and a batch in which one example is padding."""
    start = flatten(setting.module, setting.layout).to(data.x.device, dtype)
    params = torch.stack((start, start * 1.1))
    count = min(4, len(data.y))
    x, y = (torch.stack((t[:count], t[-count:])) for t in data)
    real = torch.ones(2, count, device=x.device, dtype=torch.bool)
    if count > 2:
        real[1, -1] = False
    weight = weights(setting.goal, y, real, dtype)
    x = x.to(dtype) if x.is_floating_point() else x
    y = y.to(dtype) if y.is_floating_point() else y
    return params, Batch(x, y, weight, torch.tensor([1, 2], device=x.device))


def largest_difference(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The largest difference of two tensors of a pair, relative to the largest number of the second."""
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-6)) for a, b in pairs)
