"""Triton kernel for means of masked replies: reads replies and masks once and makes no intermediate tensor."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CLIENTS, NUMBERS = 16, 128  # that a program reads at a time


@triton.jit  # type: ignore[untyped-decorator]
def _mean(  # type: ignore[no-untyped-def]
    model, replies, mask, weight, out, COUNT, SIZE, REPLIES, MASK,
    SPARSE: tl.constexpr, CLIENTS: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    """`model + sum w (x - model) / sum w m` for numbers that were sent; SPARSE: `sum w m x` if any client replied."""
    n = tl.program_id(0) * NUMBERS + tl.arange(0, NUMBERS)
    inside = n < SIZE
    old = tl.load(model + n, mask=inside, other=0.0)
    change = tl.zeros((CLIENTS, NUMBERS), dtype=tl.float32)
    covered = tl.zeros((CLIENTS, NUMBERS), dtype=tl.float32)
    present = tl.zeros((CLIENTS, 1), dtype=tl.float32)
    for first in range(0, COUNT, CLIENTS):
        c = (first + tl.arange(0, CLIENTS)).to(tl.int64)
        here = (c < COUNT)[:, None] & inside[None, :]
        own = tl.load(weight + c, mask=c < COUNT, other=0.0)[:, None]
        x = tl.load(replies + c[:, None] * REPLIES + n[None, :], mask=here, other=0.0)
        sent = tl.load(mask + c[:, None] * MASK + n[None, :], mask=here, other=0) != 0
        if SPARSE:
            change += tl.where(sent, own * x, 0.0)
            present += own
        else:
            change += tl.where(here, own * (x - old[None, :]), 0.0)
            covered += own * sent.to(tl.float32)
    moved = tl.sum(change, 0)
    if SPARSE:
        new = tl.where(tl.sum(present, 0) > 0, moved, old)
    else:
        total = tl.sum(covered, 0)
        new = old + moved / tl.where(total > 0, total, 1.0)
    tl.store(out + n, new, mask=inside)


def masked_mean(model: Tensor, params: Tensor, mask: Tensor, weight: Tensor, sparse: bool) -> Tensor:
    """The next model [P] from replies [C, P] and weights [C], whose sum is 1, or 0 if no client replied.

    Each number is the mean over the clients that sent it (unsent numbers must equal the model's) or, if `sparse`, over
    all clients, with unsent numbers as zeros.
    """
    out = torch.empty_like(model)
    _mean[(triton.cdiv(len(model), NUMBERS),)](
        model, params, mask, weight, out, len(params), len(model), params.stride(0), mask.stride(0),
        SPARSE=sparse, CLIENTS=CLIENTS, NUMBERS=NUMBERS, num_warps=4,
    )  # fmt: skip
    return out
