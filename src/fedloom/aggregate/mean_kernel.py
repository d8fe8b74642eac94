"""A Triton kernel for means over those who sent a number: replies and masks are read once, and nothing else is made."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CLIENTS, NUMBERS = 16, 128  # read by a program at a time


@triton.jit  # type: ignore[untyped-decorator]
def _mean(  # type: ignore[no-untyped-def]
    model, replies, mask, weight, out, COUNT, SIZE, REPLIES, MASK, CLIENTS: tl.constexpr, NUMBERS: tl.constexpr
):
    """`model + sum w (x - model) / sum w m`, where anybody sent it."""
    n = tl.program_id(0) * NUMBERS + tl.arange(0, NUMBERS)
    inside = n < SIZE
    old = tl.load(model + n, mask=inside, other=0.0)
    change = tl.zeros((CLIENTS, NUMBERS), dtype=tl.float32)
    covered = tl.zeros((CLIENTS, NUMBERS), dtype=tl.float32)
    for first in range(0, COUNT, CLIENTS):
        c = (first + tl.arange(0, CLIENTS)).to(tl.int64)
        here = (c < COUNT)[:, None] & inside[None, :]
        own = tl.load(weight + c, mask=c < COUNT, other=0.0)[:, None]
        x = tl.load(replies + c[:, None] * REPLIES + n[None, :], mask=here, other=0.0)
        sent = tl.load(mask + c[:, None] * MASK + n[None, :], mask=here, other=0)
        change += tl.where(here, own * (x - old[None, :]), 0.0)
        covered += own * (sent != 0).to(tl.float32)
    total = tl.sum(covered, 0)
    moved = tl.sum(change, 0) / tl.where(total > 0, total, 1.0)
    tl.store(out + n, old + moved, mask=inside)


def covered_mean(model: Tensor, params: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
    """The next model [P] from replies [C, P]; unsent numbers equal the model's own."""
    out = torch.empty_like(model)
    _mean[(triton.cdiv(len(model), NUMBERS),)](
        model, params, mask, weight, out, len(params), len(model), params.stride(0), mask.stride(0),
        CLIENTS=CLIENTS, NUMBERS=NUMBERS, num_warps=4,
    )  # fmt: skip
    return out
