"""The number of threads for runs on CPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.accel.machine import cores
from fedloom.core.clock import processed
from fedloom.core.types import Setting
from fedloom.runs.inputs import Inputs

SMALL = 20_000_000  # multiply-adds of one step of all clients that train at once, about

CALL = 500_000  # multiply-adds that take as long as the calls of a layer, forth and back


@contextmanager
def threads_for(runs: Sequence[Inputs]) -> Iterator[None]:
    """Use one thread for small work, where more gain nothing and are ten times slower if another program runs.

    Otherwise one per core of this process, unless OMP_NUM_THREADS is set.
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
    """The multiply-adds of one step of the whole cohort, about."""
    cohort = run.method.cohort_size(run.setting.fleet.size)
    return multiply_adds(run.setting) * max(1, run.method.work.batch) * cohort


def round_of(run: Inputs) -> float:
    """The multiply-adds of a round of the whole cohort, about, with what calling every layer in every step costs."""
    method, sizes = run.method, run.setting.fleet.examples
    layers = sum(not list(layer.children()) for layer in run.setting.module.modules())
    examples = float(processed(method.work, sizes).double().mean())
    steps = examples / method.work.batch if method.work.batch else float(method.work.steps or method.work.epochs)
    each = examples * multiply_adds(run.setting) + steps * layers * CALL
    return each * method.cohort_size(run.setting.fleet.size)


def multiply_adds(setting: Setting) -> int:
    """The multiply-adds of one example: weights count as often as they are applied, a convolution's at every place."""
    found = 0

    def count(layer: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal found
        if isinstance(layer, nn.RNNBase):
            steps = inputs[0].numel() // (len(setting.example) * inputs[0].shape[-1])
            found += steps * sum(weight.numel() for weight in layer.parameters() if weight.dim() > 1)
            return
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
