"""The number of threads for runs on CPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.accel.machine import cores
from fedloom.core.types import Setting
from fedloom.runs.inputs import Inputs

SMALL = 20_000_000  # multiply-adds of a step of all that train at once, about


@contextmanager
def threads_for(runs: Sequence[Inputs]) -> Iterator[None]:
    """One thread for small work: there several gain nothing, and lose tenfold when anything else runs.

    Else as many as this process has cores for, unless OMP_NUM_THREADS says how many.
    """
    before = torch.get_num_threads()
    if sum(step_of(run) for run in runs) < SMALL:
        torch.set_num_threads(1)
    elif not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(min(before, cores()))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def step_of(run: Inputs) -> int:
    """Multiply-adds of one step of the whole cohort, about."""
    cohort = run.method.select.cohort_size(run.setting.fleet.size)
    return multiply_adds(run.setting) * max(1, run.method.work.batch) * cohort


def multiply_adds(setting: Setting) -> int:
    """Of one example: every weight counts as often as its layer applies it, a convolution's at every place."""
    found = 0

    def count(layer: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal found
        weight = getattr(layer, "weight", None)
        if isinstance(weight, Tensor) and weight.dim() > 1 and isinstance(output, Tensor):
            found += weight.numel() * max(1, output.numel() // (len(setting.example) * weight.shape[0]))

    hooks = [layer.register_forward_hook(count) for layer in setting.module.modules()]
    try:
        with torch.no_grad():
            setting.module.eval()(setting.example)
    finally:
        for hook in hooks:
            hook.remove()
    return max(found, setting.layout.total)
