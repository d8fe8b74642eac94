"""Floating-point operations (counted) and bytes moved (estimated) of a round's training."""

from __future__ import annotations

from copy import deepcopy
from typing import NamedTuple

import torch

from fedloom.core.clock import PASSES, processed
from fedloom.core.types import Reply, Task
from fedloom.neurons.footprint import BYTES, footprint
from fedloom.runs.build import Prepared


class Counts(NamedTuple):
    """Steps, operations and bytes of one round's training."""

    steps: int  # sum over clients
    flops: float
    bytes: float


def count(run: Prepared, task: Task, reply: Reply) -> Counts:
    """Count a round; sub-models count at their own size if the engine cuts them, else networks count whole.

    Operations: three forward passes per example, one forward and two backward. Bytes of a step, if nothing stays in a
    cache: weights 6 times (read forward and backward, their gradient written and read, updated in place by one read
    and one write), activations 4 times (they and their gradients written and read), examples 3 times (gathered by
    one read and one write, then read).
    """
    setting, method = run.inputs.setting, run.inputs.method
    assert run.trainer is not None
    cuts = run.trainer.plan.parts != "masked" and task.keep is not None and method.local.traits.cuts
    whole = torch.ones(len(reply.ids), setting.neurons.size, dtype=torch.bool, device=reply.ids.device)
    forward = setting.neurons.flops(task.keep if cuts and task.keep is not None else whole)  # [C]
    samples = processed(method.work, setting.fleet.examples[reply.ids])
    steps = int(reply.report["steps"].sum())
    batch = int(samples.sum()) / steps
    network, example = deepcopy(run.inputs.network).cpu(), setting.example.cpu()
    moved, inputs = 0.0, BYTES * example[0].numel() * batch
    shares = task.share if cuts else torch.ones_like(task.share)
    for share in shares.unique():
        held = footprint(network, example, float(share))
        each = 6 * held.weights + 4 * held.activations * batch + 3 * inputs
        moved += each * int(reply.report["steps"][shares == share].sum())
    return Counts(steps, float((PASSES * forward * samples).sum()), moved)
