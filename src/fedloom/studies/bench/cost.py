"""What does a round's training ask of a device? Operations, counted, and bytes moved, estimated."""

from __future__ import annotations

from copy import deepcopy
from typing import NamedTuple

import torch

from fedloom.core.clock import PASSES, processed
from fedloom.core.types import Reply, Task
from fedloom.neurons.footprint import BYTES, footprint
from fedloom.runs.build import Prepared


class Cost(NamedTuple):
    """Of one round's training."""

    steps: int  # of all clients
    flops: float
    bytes: float


def cost(run: Prepared, task: Task, reply: Reply) -> Cost:
    """Sub-models count at their own size where the engine cuts them, else networks count whole.

    Operations: three forward passes a sample, one forward and two back. Bytes of a step, if nothing stays in a cache:
    weights 6 times (read forward and back, their gradient written and read, they themselves read and written),
    activations 4 times (written and read, and so their gradients), examples 3 times (gathered, then read).
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
    return Cost(steps, float((PASSES * forward * samples).sum()), moved)
