"""Triton kernel for a step of SGD with momentum: one pass over weights, gradients and velocities."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _sgd_momentum(  # type: ignore[no-untyped-def]
    w, g, v, stepping, movable, rate, total, EACH, MOMENTUM, DECAY,
    STEPPING: tl.constexpr, MOVABLE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """A step of SGD with momentum, of those who take it and of the numbers that may move."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = at < total
    if STEPPING:
        inside = inside & (tl.load(stepping + at // EACH, mask=inside, other=0) != 0)
    if MOVABLE:
        inside = inside & (tl.load(movable + at, mask=inside, other=0) != 0)
    weight = tl.load(w + at, mask=inside, other=0.0)
    speed = (
        tl.load(v + at, mask=inside, other=0.0) * MOMENTUM + tl.load(g + at, mask=inside, other=0.0) + DECAY * weight
    )
    tl.store(v + at, speed, mask=inside)
    tl.store(w + at, weight - tl.load(rate).to(tl.float32) * speed, mask=inside)


def sgd_momentum(
    w: Tensor,
    g: Tensor,
    v: Tensor,
    stepping: Tensor | None,
    movable: Tensor | None,
    rate: Tensor,
    momentum: float,
    decay: float,
) -> None:
    """`momentum.momentum_step` on a GPU; all tensors but the gradient must be contiguous."""
    grid = (triton.cdiv(w.numel(), BLOCK),)
    some, moving = (
        w if stepping is None else stepping,
        w if movable is None else movable,
    )  # placeholders where there is none
    count, each = w.numel(), w.numel() // len(w)
    _sgd_momentum[grid](
        w, g.contiguous(), v, some, moving, rate, count, each, momentum, decay,
        STEPPING=stepping is not None, MOVABLE=movable is not None, SIZE=BLOCK,
    )  # fmt: skip
