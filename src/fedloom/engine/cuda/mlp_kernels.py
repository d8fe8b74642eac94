"""Triton kernels for a training step of a chain of linear layers, with weights per client.

Examples are read in place, the loss is part of the last layer's product, and a weight takes its step, with or without
momentum, inside the product that would have made its gradient: no gradient as large as the weights is written. Programs
of clients without a step left return at once. Sizes are given in units (powers of two), which tell the compiler how
many numbers it may read at once.

Where clients keep only some of a layer's neurons (CUT_IN, CUT_OUT), these come first (`kept` is their number), and
programs of tiles beyond them return at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

MAX_OUTPUTS = 128  # of a network: one tile must hold all outputs of an example, to compute the loss


@triton.jit  # type: ignore[untyped-decorator]
def _kept_count(kept, client, SIZE, CUT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Number of a layer's neurons that a client keeps."""
    if CUT:
        return tl.load(kept + client)
    else:
        return SIZE


@triton.jit  # type: ignore[untyped-decorator]
def forward_kernel(  # type: ignore[no-untyped-def]
    x, rows, w, bias, out, labels, weight, losses, step_index, step_counts, kept_in, kept_out,
    BATCH, IN, OUT, CLIENTS, IN_UNIT: tl.constexpr, OUT_UNIT: tl.constexpr, CUT_IN: tl.constexpr, CUT_OUT: tl.constexpr,
    PICKS: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr, LAST: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A layer's outputs [C, B, o]; LAST: the loss's gradient by the outputs instead, and losses are added up."""
    INPUTS, OUTPUTS = IN * IN_UNIT, OUT * OUT_UNIT
    client, step = tl.program_id(1), tl.load(step_index)
    inputs, outputs = _kept_count(kept_in, client, INPUTS, CUT_IN), _kept_count(kept_out, client, OUTPUTS, CUT_OUT)
    if (tl.load(step_counts + client) <= step) | (tl.program_id(0) * BN >= outputs):
        return
    m, n = tl.program_id(2) * BM + tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN)
    inside = m < BATCH
    at = (step * CLIENTS + client) * BATCH + m  # of the example among all steps' examples
    own = client.to(tl.int64) * BATCH + m
    row = own
    if PICKS or LAST:
        picked = tl.load(rows + at, mask=inside, other=0)
        if PICKS:
            row = picked
    w += client.to(tl.int64) * OUTPUTS * INPUTS
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(0, inputs, BK):
        k = first + tl.arange(0, BK)
        there = k < inputs
        a = tl.load(x + row[:, None] * INPUTS + k[None, :], mask=inside[:, None] & there[None, :], other=0.0)
        v = tl.load(w + n[None, :] * INPUTS + k[:, None], mask=(n < outputs)[None, :] & there[:, None], other=0.0)
        acc = tl.dot(a, v, acc, input_precision=PRECISION)
    if BIAS:
        acc += tl.load(bias + client * OUTPUTS + n, mask=n < outputs, other=0.0)[None, :]
    if RELU:
        acc = tl.where(acc < 0, 0.0, acc)  # NaN stays NaN
    if LAST:
        label = tl.load(labels + picked, mask=inside, other=0)
        counts = tl.load(weight + at, mask=inside, other=0.0)
        z = tl.where((n < outputs)[None, :], acc, -float("inf"))
        top = tl.max(z, 1)
        power = tl.exp(z - top[:, None])
        total = tl.sum(power, 1)
        is_label = n[None, :] == label[:, None]
        loss = tl.log(total) + top - tl.sum(tl.where(is_label, acc, 0.0), 1)
        tl.store(losses + own, tl.load(losses + own, mask=inside, other=0.0) + loss * counts, mask=inside)
        acc = (power / total[:, None] - is_label.to(tl.float32)) * counts[:, None]
    tl.store(out + own[:, None] * OUTPUTS + n[None, :], acc, mask=inside[:, None] & (n < outputs)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def input_gradient_kernel(  # type: ignore[no-untyped-def]
    grad, w, seen, out, step_index, step_counts, kept_in, kept_out,
    BATCH, IN, OUT, IN_UNIT: tl.constexpr, OUT_UNIT: tl.constexpr, CUT_IN: tl.constexpr, CUT_OUT: tl.constexpr,
    RELU: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Gradient of a layer's inputs [C, B, i], through the ReLU (if any) that made them."""
    INPUTS, OUTPUTS = IN * IN_UNIT, OUT * OUT_UNIT
    client = tl.program_id(1)
    inputs, outputs = _kept_count(kept_in, client, INPUTS, CUT_IN), _kept_count(kept_out, client, OUTPUTS, CUT_OUT)
    if (tl.load(step_counts + client) <= tl.load(step_index)) | (tl.program_id(0) * BN >= inputs):
        return
    m, n = tl.program_id(2) * BM + tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN)
    own = client.to(tl.int64) * BATCH + m
    w += client.to(tl.int64) * OUTPUTS * INPUTS
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(0, outputs, BK):
        k = first + tl.arange(0, BK)
        there = k < outputs
        g = tl.load(grad + own[:, None] * OUTPUTS + k[None, :], mask=(m < BATCH)[:, None] & there[None, :], other=0.0)
        v = tl.load(w + k[:, None] * INPUTS + n[None, :], mask=there[:, None] & (n < inputs)[None, :], other=0.0)
        acc = tl.dot(g, v, acc, input_precision=PRECISION)
    inside = (m < BATCH)[:, None] & (n < inputs)[None, :]
    at = own[:, None] * INPUTS + n[None, :]
    if RELU:
        acc = tl.where(tl.load(seen + at, mask=inside, other=0.0) > 0, acc, 0.0)
    tl.store(out + at, acc, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def weight_step_kernel(  # type: ignore[no-untyped-def]
    grad, x, rows, w, velocity, movable, bias, bias_velocity, bias_movable, rate_factors, rate,
    step_index, step_counts, kept_in, kept_out,
    BATCH, IN, OUT, CLIENTS, MOMENTUM, DECAY,
    IN_UNIT: tl.constexpr, OUT_UNIT: tl.constexpr, CUT_IN: tl.constexpr, CUT_OUT: tl.constexpr,
    PICKS: tl.constexpr, BIAS: tl.constexpr, MOVABLE: tl.constexpr, VELOCITY: tl.constexpr, PRECISION: tl.constexpr,
    SCALED: tl.constexpr, TILES: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Step of a layer's weight [C, o, i] and bias [C, o].

    SCALED: gradients are multiplied by the rate factors of their rows [C, o].
    """
    INPUTS, OUTPUTS = IN * IN_UNIT, OUT * OUT_UNIT
    client, step = tl.program_id(1), tl.load(step_index)
    inputs, outputs = _kept_count(kept_in, client, INPUTS, CUT_IN), _kept_count(kept_out, client, OUTPUTS, CUT_OUT)
    row_tile, column_tile = tl.program_id(0) // TILES, tl.program_id(0) % TILES
    if (tl.load(step_counts + client) <= step) | (row_tile * BM >= outputs) | (column_tile * BN >= inputs):
        return
    step_rate = tl.load(rate).to(tl.float32)
    o, i = row_tile * BM + tl.arange(0, BM), column_tile * BN + tl.arange(0, BN)
    inside = (o < outputs)[:, None] & (i < inputs)[None, :]
    at = (client.to(tl.int64) * OUTPUTS + o[:, None]) * INPUTS + i[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    total = tl.zeros((BM,), dtype=tl.float32)
    for first in range(0, BATCH, BK):
        m = first + tl.arange(0, BK)
        own = client.to(tl.int64) * BATCH + m
        row = own
        if PICKS:
            row = tl.load(rows + (step * CLIENTS + client) * BATCH + m, mask=m < BATCH, other=0)
        real = m < BATCH
        g = tl.load(grad + own[None, :] * OUTPUTS + o[:, None], mask=real[None, :] & (o < outputs)[:, None], other=0.0)
        a = tl.load(x + row[:, None] * INPUTS + i[None, :], mask=real[:, None] & (i < inputs)[None, :], other=0.0)
        acc = tl.dot(g, a, acc, input_precision=PRECISION)
        if BIAS:
            total += tl.sum(g, 1)
    if SCALED:
        each = tl.load(rate_factors + client * OUTPUTS + o, mask=o < outputs, other=0.0)
        acc *= each[:, None]
        total *= each
    own_w = tl.load(w + at, mask=inside, other=0.0)
    moved = acc + DECAY * own_w
    if (
        MOVABLE
    ):  # held numbers are written again as they were: skipping them would split reads and writes into single ones
        free = tl.load(movable + at, mask=inside, other=0) != 0
    if VELOCITY:
        old = tl.load(velocity + at, mask=inside, other=0.0)
        moved += MOMENTUM * old
        tl.store(velocity + at, tl.where(free, moved, old) if MOVABLE else moved, mask=inside)
    new = own_w - step_rate * moved
    tl.store(w + at, tl.where(free, new, own_w) if MOVABLE else new, mask=inside)
    if BIAS:  # noqa: SIM102  a compile-time condition
        if column_tile == 0:
            there = o < outputs
            at_bias = client * OUTPUTS + o
            if MOVABLE:
                there = there & (tl.load(bias_movable + at_bias, mask=there, other=0) != 0)
            own_b = tl.load(bias + at_bias, mask=there, other=0.0)
            moved_b = total + DECAY * own_b
            if VELOCITY:
                moved_b += MOMENTUM * tl.load(bias_velocity + at_bias, mask=there, other=0.0)
                tl.store(bias_velocity + at_bias, moved_b, mask=there)
            tl.store(bias + at_bias, own_b - step_rate * moved_b, mask=there)
