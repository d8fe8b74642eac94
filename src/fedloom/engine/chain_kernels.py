"""Triton kernels for a step of a chain of linear layers, every client with weights of its own.

Examples are read where they lie, the loss is part of the last layer's product, and a weight takes its step, with or
without momentum, inside the product that would have made its gradient: no gradient as large as the weights is written.
Clients whose steps are over leave at once. Sizes come in units (powers of two), from which the compiler sees how many
numbers it may read at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

MOST = 128  # outputs of a network: all of an example's must fit into one tile, where the loss is made


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    x, rows, w, bias, out, labels, weight, losses, number, taken, BATCH, IN, OUT, CLIENTS,
    IN_UNIT: tl.constexpr, OUT_UNIT: tl.constexpr,
    PICKS: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr, LAST: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A layer's outputs [C, B, o]; of the last layer the gradient of the loss by them, and the losses are counted."""
    INPUTS, OUTPUTS = IN * IN_UNIT, OUT * OUT_UNIT
    client, step = tl.program_id(1), tl.load(number)
    if tl.load(taken + client) <= step:
        return
    m, n = tl.program_id(2) * BM + tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN)
    inside = m < BATCH
    at = (step * CLIENTS + client) * BATCH + m  # of the example in the plan
    own = client.to(tl.int64) * BATCH + m
    row = own
    if PICKS or LAST:
        picked = tl.load(rows + at, mask=inside, other=0)
        if PICKS:
            row = picked
    w += client.to(tl.int64) * OUTPUTS * INPUTS
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(0, INPUTS, BK):
        k = first + tl.arange(0, BK)
        there = k < INPUTS
        a = tl.load(x + row[:, None] * INPUTS + k[None, :], mask=inside[:, None] & there[None, :], other=0.0)
        v = tl.load(w + n[None, :] * INPUTS + k[:, None], mask=(n < OUTPUTS)[None, :] & there[:, None], other=0.0)
        acc = tl.dot(a, v, acc, input_precision=PRECISION)
    if BIAS:
        acc += tl.load(bias + client * OUTPUTS + n, mask=n < OUTPUTS, other=0.0)[None, :]
    if RELU:
        acc = tl.where(acc < 0, 0.0, acc)  # what is no number stays none
    if LAST:
        label = tl.load(labels + picked, mask=inside, other=0)
        counts = tl.load(weight + at, mask=inside, other=0.0)
        z = tl.where((n < OUTPUTS)[None, :], acc, -float("inf"))
        top = tl.max(z, 1)
        power = tl.exp(z - top[:, None])
        total = tl.sum(power, 1)
        is_label = n[None, :] == label[:, None]
        loss = tl.log(total) + top - tl.sum(tl.where(is_label, acc, 0.0), 1)
        tl.store(losses + own, tl.load(losses + own, mask=inside, other=0.0) + loss * counts, mask=inside)
        acc = (power / total[:, None] - is_label.to(tl.float32)) * counts[:, None]
    tl.store(out + own[:, None] * OUTPUTS + n[None, :], acc, mask=inside[:, None] & (n < OUTPUTS)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _back(  # type: ignore[no-untyped-def]
    grad, w, seen, out, number, taken, BATCH, IN, OUT,
    IN_UNIT: tl.constexpr, OUT_UNIT: tl.constexpr,
    RELU: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The gradient of a layer's inputs [C, B, i], through the ReLU (if any) that made them."""
    INPUTS, OUTPUTS = IN * IN_UNIT, OUT * OUT_UNIT
    client = tl.program_id(1)
    if tl.load(taken + client) <= tl.load(number):
        return
    m, n = tl.program_id(2) * BM + tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN)
    own = client.to(tl.int64) * BATCH + m
    w += client.to(tl.int64) * OUTPUTS * INPUTS
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(0, OUTPUTS, BK):
        k = first + tl.arange(0, BK)
        there = k < OUTPUTS
        g = tl.load(grad + own[:, None] * OUTPUTS + k[None, :], mask=(m < BATCH)[:, None] & there[None, :], other=0.0)
        v = tl.load(w + k[:, None] * INPUTS + n[None, :], mask=there[:, None] & (n < INPUTS)[None, :], other=0.0)
        acc = tl.dot(g, v, acc, input_precision=PRECISION)
    inside = (m < BATCH)[:, None] & (n < INPUTS)[None, :]
    at = own[:, None] * INPUTS + n[None, :]
    if RELU:
        acc = tl.where(tl.load(seen + at, mask=inside, other=0.0) > 0, acc, 0.0)
    tl.store(out + at, acc, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _turn(  # type: ignore[no-untyped-def]
    grad, x, rows, w, speed, may, bias, bias_speed, bias_may, rate, number, taken,
    BATCH, IN, OUT, CLIENTS, MOMENTUM, DECAY, IN_UNIT: tl.constexpr, OUT_UNIT: tl.constexpr,
    PICKS: tl.constexpr, BIAS: tl.constexpr, MAY: tl.constexpr, HEAVY: tl.constexpr, PRECISION: tl.constexpr,
    TILES: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A step of a layer's weight [C, o, i] and bias [C, o]."""
    INPUTS, OUTPUTS = IN * IN_UNIT, OUT * OUT_UNIT
    client, step = tl.program_id(1), tl.load(number)
    if tl.load(taken + client) <= step:
        return
    pace = tl.load(rate).to(tl.float32)
    o = (tl.program_id(0) // TILES) * BM + tl.arange(0, BM)
    i = (tl.program_id(0) % TILES) * BN + tl.arange(0, BN)
    inside = (o < OUTPUTS)[:, None] & (i < INPUTS)[None, :]
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
        g = tl.load(grad + own[None, :] * OUTPUTS + o[:, None], mask=real[None, :] & (o < OUTPUTS)[:, None], other=0.0)
        a = tl.load(x + row[:, None] * INPUTS + i[None, :], mask=real[:, None] & (i < INPUTS)[None, :], other=0.0)
        acc = tl.dot(g, a, acc, input_precision=PRECISION)
        if BIAS:
            total += tl.sum(g, 1)
    own_w = tl.load(w + at, mask=inside, other=0.0)
    moved = acc + DECAY * own_w
    if HEAVY:
        own_speed = tl.load(speed + at, mask=inside, other=0.0)
        moved += MOMENTUM * own_speed
    new_w = own_w - pace * moved
    if MAY:  # what may not move is written back: with holes in it a store goes number by number
        moves = tl.load(may + at, mask=inside, other=0) != 0
        new_w = tl.where(moves, new_w, own_w)
        if HEAVY:
            moved = tl.where(moves, moved, own_speed)
    if HEAVY:
        tl.store(speed + at, moved, mask=inside)
    tl.store(w + at, new_w, mask=inside)
    if BIAS:  # noqa: SIM102  known when it is compiled
        if tl.program_id(0) % TILES == 0:
            there = o < OUTPUTS
            at_bias = client * OUTPUTS + o
            if MAY:
                there = there & (tl.load(bias_may + at_bias, mask=there, other=0) != 0)
            own_b = tl.load(bias + at_bias, mask=there, other=0.0)
            moved_b = total + DECAY * own_b
            if HEAVY:
                moved_b += MOMENTUM * tl.load(bias_speed + at_bias, mask=there, other=0.0)
                tl.store(bias_speed + at_bias, moved_b, mask=there)
            tl.store(bias + at_bias, own_b - pace * moved_b, mask=there)
