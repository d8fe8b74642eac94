"""A step of SGD with momentum in one pass over weights, gradients and velocities."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.accel.machine import own_kernels
from fedloom.core.types import column


def move(
    w: Tensor,
    g: Tensor,
    v: Tensor,
    works: Tensor | None,
    may: Tensor | None,
    rate: Tensor,
    momentum: float,
    decay: float,
) -> None:
    """`v <- momentum * v + g + decay * w`, then `w <- w - rate * v` in place, for tensors [C, ...] of a cohort.

    `works` [C]: who takes this step; those who do not take none later either. `may` [C, ...]: which numbers move. None
    stands for all.
    """
    if own_kernels(w.device.type) and w.dtype == torch.float32:
        from fedloom.engine.cuda.sgd_momentum import heavy

        heavy(w, g, v, works, may, rate, momentum, decay)
        return
    v.mul_(momentum).add_(g.add(w, alpha=decay) if decay else g)
    step = v * rate
    for allowed in (None if works is None else column(works, w), may):
        step = step if allowed is None else torch.where(allowed, step, 0)
    w.sub_(step)
