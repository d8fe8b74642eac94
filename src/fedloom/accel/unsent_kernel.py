"""Triton kernel that writes the model's numbers into replies where nothing was sent, in place."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

NUMBERS = 1024  # of one client that a program visits


@triton.jit  # type: ignore[untyped-decorator]
def _put_back(  # type: ignore[no-untyped-def]
    model, replies, mask, arrived, out, SIZE, REPLIES, MASK,
    MASKED: tl.constexpr, LOST: tl.constexpr, READ: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    """LOST: some replies did not arrive, and `out` is the mask without them. READ: the others need no change."""
    client = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * NUMBERS + tl.arange(0, NUMBERS)
    inside = n < SIZE
    replies += client * REPLIES
    if LOST:
        here = tl.load(arrived + client) != 0
    if MASKED:
        sent = tl.load(mask + client * MASK + n, mask=inside, other=1) != 0
        if LOST:
            sent = sent & here
            tl.store(out + client * SIZE + n, sent, mask=inside)
    if MASKED and not READ:
        rest = inside & (sent == 0)
        tl.store(replies + n, tl.load(model + n, mask=rest, other=0.0), mask=rest)
    else:  # no `elif`: the first is a compile-time condition, the second a run-time one
        if here == 0:
            tl.store(replies + n, tl.load(model + n, mask=inside, other=0.0), mask=inside)


def put_back(
    model: Tensor, params: Tensor, mask: Tensor | None, arrived: Tensor | None, read: bool = False
) -> Tensor | None:
    """Write the model [P] into replies [C, P] where nothing was sent or arrived; return the mask of what arrived.

    `arrived` None: every reply. `read`: replies that arrived hold the model's numbers already where nothing was sent.
    """
    masked, lost = mask is not None, arrived is not None
    if not lost and (read or not masked):
        return mask
    (count, size), sent = params.shape, mask
    if masked and lost:  # a new one: the task may hold the mask as well
        sent = torch.empty(count, size, dtype=torch.bool, device=params.device)
    _put_back[(triton.cdiv(size, NUMBERS), count)](
        model, params, mask if masked else model, arrived if lost else model, sent if masked else model, size,
        params.stride(0), mask.stride(0) if mask is not None else 0,
        MASKED=masked, LOST=lost, READ=read, NUMBERS=NUMBERS, num_warps=4,
    )  # fmt: skip
    return sent
