"""A step of SGD with momentum in place, by our kernel where it runs, else by PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.accel.machine import own_kernels
from fedloom.core.types import column


def momentum_step(
    w: Tensor,
    g: Tensor,
    v: Tensor,
    stepping: Tensor | None,
    movable: Tensor | None,
    rate: Tensor,
    momentum: float,
    decay: float,
) -> None:
    """`v <- momentum * v + g + decay * w`, then `w <- w - rate * v` in place, for tensors [C, ...] of a cohort.

    `stepping` [C]: clients that take this step; the others have taken their last. `movable` [C, ...]: numbers that the
    step changes. None stands for all.
    """
    if own_kernels(w.device.type) and w.dtype == torch.float32:
        from fedloom.engine.cuda.sgd_momentum import sgd_momentum

        sgd_momentum(w, g, v, stepping, movable, rate, momentum, decay)
        return
    v.mul_(momentum).add_(g.add(w, alpha=decay) if decay else g)
    step = v * rate
    for allowed in (None if stepping is None else column(stepping, w), movable):
        step = step if allowed is None else torch.where(allowed, step, 0)
    w.sub_(step)
