"""Triton kernels for max-pooling and group norm of images with channels last."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _max_pool(  # type: ignore[no-untyped-def]
    x, y, place, total, CH, OH, OW, n_, c_, h_, w_,
    KH: tl.constexpr, KW: tl.constexpr, SIZE: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """The maximum of every window and its place: the first of equal values, and NaN before any."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    if LONG:
        at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = at < total
    c, ow, oh, n = at % CH, (at // CH) % OW, (at // (CH * OW)) % OH, at // (CH * OW * OH)
    first = x + n * n_ + c * c_ + oh * KH * h_ + ow * KW * w_
    best = tl.full((SIZE,), float("-inf"), tl.float32)
    where = tl.zeros((SIZE,), tl.int32)
    for tap in tl.static_range(KH * KW):
        value = tl.load(first + (tap // KW) * h_ + (tap % KW) * w_, mask=inside, other=0.0)
        better = (value > best) | (value != value)
        best, where = tl.where(better, value, best), tl.where(better, tap, where)
    tl.store(y + at, best, mask=inside)
    tl.store(place + at, where.to(tl.int8), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _max_pool_backward(  # type: ignore[no-untyped-def]
    g, place, gx, total, CH, H, W, OH, OW, n_, c_, h_, w_,
    KH: tl.constexpr, KW: tl.constexpr, SIZE: tl.constexpr, LONG: tl.constexpr,
):  # fmt: skip
    """Write each gradient to the place of its maximum, zeros elsewhere."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    if LONG:
        at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = at < total
    c, w, h, n = at % CH, (at // CH) % W, (at // (CH * W)) % H, at // (CH * W * H)
    oh, ow = h // KH, w // KW
    seen = inside & (oh < OH) & (ow < OW)  # pixels that no window covers have no gradient
    mine = tl.load(place + ((n * OH + oh) * OW + ow) * CH + c, mask=seen, other=-1).to(tl.int32)
    value = tl.load(g + n * n_ + c * c_ + oh * h_ + ow * w_, mask=seen, other=0.0)
    tl.store(gx + at, tl.where(mine == (h % KH) * KW + w % KW, value, 0.0), mask=inside)


class Pool(torch.autograd.Function):
    """Max-pooling in windows that touch but do not overlap."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, window: tuple[int, int]) -> Tensor:
        """[n, c, H, W] to [n, c, H / window, W / window], channels last."""
        n, channels, height, width = x.shape
        shape = (n, channels, height // window[0], width // window[1])
        y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        place = torch.empty(y.numel(), dtype=torch.int8, device=x.device)
        grid = (triton.cdiv(y.numel(), BLOCK),)
        long = x.numel() >= 2**31  # beyond that indices do not fit 32 bits
        _max_pool[grid](
            x, y, place, y.numel(), *shape[1:], *x.stride(), KH=window[0], KW=window[1], SIZE=BLOCK, LONG=long
        )
        ctx.save_for_backward(place)
        ctx.shape, ctx.window = x.shape, window
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        """Gradient of the images."""
        (place,) = ctx.saved_tensors
        gx = torch.empty(ctx.shape, dtype=g.dtype, device=g.device, memory_format=torch.channels_last)
        grid = (triton.cdiv(gx.numel(), BLOCK),)
        _max_pool_backward[grid](
            g, place, gx, gx.numel(), *ctx.shape[1:], *g.shape[2:], *g.stride(),
            KH=ctx.window[0], KW=ctx.window[1], SIZE=BLOCK, LONG=gx.numel() >= 2**31,
        )  # fmt: skip
        return gx, None


@triton.jit  # type: ignore[untyped-decorator]
def _group_norm(  # type: ignore[no-untyped-def]
    x, w, b, y, mean, rstd, BATCH, CH, PLACES, EPS, n_, c_, p_,
    EACH: tl.constexpr, GROUPS: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Normalise one group of one example, then apply the client's affine map."""
    n, group = tl.program_id(0), tl.program_id(1)
    each = tl.arange(0, BC)
    c, own = group * EACH + each, each < EACH
    base = x + n.to(tl.int64) * n_ + c[None, :] * c_
    total = tl.zeros((BC,), tl.float32)
    for first in range(0, PLACES, BP):
        p = first + tl.arange(0, BP)
        seen = (p < PLACES)[:, None] & own[None, :]
        total += tl.sum(tl.load(base + p[:, None] * p_, mask=seen, other=0.0), 0)
    middle = tl.sum(total, 0) / (EACH * PLACES)
    total = tl.zeros((BC,), tl.float32)
    for first in range(0, PLACES, BP):
        p = first + tl.arange(0, BP)
        seen = (p < PLACES)[:, None] & own[None, :]
        off = tl.where(seen, tl.load(base + p[:, None] * p_, mask=seen, other=0.0) - middle, 0.0)
        total += tl.sum(off * off, 0)
    scale = 1 / tl.sqrt(tl.sum(total, 0) / (EACH * PLACES) + EPS)
    tl.store(mean + n * GROUPS + group, middle)
    tl.store(rstd + n * GROUPS + group, scale)
    client = n // BATCH
    weight = tl.load(w + client * CH + c, mask=own, other=0.0)
    bias = tl.load(b + client * CH + c, mask=own, other=0.0)
    for first in range(0, PLACES, BP):
        p = first + tl.arange(0, BP)
        seen = (p < PLACES)[:, None] & own[None, :]
        value = (tl.load(base + p[:, None] * p_, mask=seen, other=0.0) - middle) * scale
        to = y + (n.to(tl.int64) * PLACES + p[:, None]) * CH + c[None, :]
        tl.store(to, value * weight[None, :] + bias[None, :], mask=seen)


@triton.jit  # type: ignore[untyped-decorator]
def _group_norm_backward(  # type: ignore[no-untyped-def]
    g, x, w, mean, rstd, gx, gw, gb, BATCH, CH, PLACES, gn_, gc_, gp_, n_, c_, p_,
    EACH: tl.constexpr, GROUPS: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Gradient of one group of one example, and its part of the affine map's gradients."""
    n, group = tl.program_id(0), tl.program_id(1)
    each = tl.arange(0, BC)
    c, own = group * EACH + each, each < EACH
    base, slope = x + n.to(tl.int64) * n_ + c[None, :] * c_, g + n.to(tl.int64) * gn_ + c[None, :] * gc_
    middle, scale = tl.load(mean + n * GROUPS + group), tl.load(rstd + n * GROUPS + group)
    weight = tl.load(w + (n // BATCH) * CH + c, mask=own, other=0.0)
    by_bias, by_weight = tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
    for first in range(0, PLACES, BP):
        p = first + tl.arange(0, BP)
        seen = (p < PLACES)[:, None] & own[None, :]
        up = tl.load(slope + p[:, None] * gp_, mask=seen, other=0.0)
        hat = (tl.load(base + p[:, None] * p_, mask=seen, other=0.0) - middle) * scale
        by_bias += tl.sum(up, 0)
        by_weight += tl.sum(up * hat, 0)
    tl.store(gb + n * CH + c, by_bias, mask=own)
    tl.store(gw + n * CH + c, by_weight, mask=own)
    sum_up = tl.sum(by_bias * weight, 0) / (EACH * PLACES)
    sum_hat = tl.sum(by_weight * weight, 0) / (EACH * PLACES)
    for first in range(0, PLACES, BP):
        p = first + tl.arange(0, BP)
        seen = (p < PLACES)[:, None] & own[None, :]
        up = tl.load(slope + p[:, None] * gp_, mask=seen, other=0.0) * weight[None, :]
        hat = (tl.load(base + p[:, None] * p_, mask=seen, other=0.0) - middle) * scale
        to = gx + (n.to(tl.int64) * PLACES + p[:, None]) * CH + c[None, :]
        tl.store(to, scale * (up - sum_up - hat * sum_hat), mask=seen)


class GroupNorm(torch.autograd.Function):
    """Group norm with an affine map per client: x [C * B, ch, H, W], w and b [C, ch]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor, groups: int, eps: float) -> Tensor:
        """One program per example and group."""
        x = x.contiguous(memory_format=torch.channels_last)
        w, b = w.contiguous(), b.contiguous()
        y, (n, channels, height, width) = torch.empty_like(x), x.shape
        mean, rstd = (x.new_empty(n, groups) for _ in range(2))
        ctx.sizes = _sizes(channels // groups, groups)
        ctx.save_for_backward(x, w, mean, rstd)
        strides = (x.stride(0), x.stride(1), x.stride(3))
        _group_norm[n, groups](
            x, w, b, y, mean, rstd, n // len(w), channels, height * width, eps, *strides, **ctx.sizes
        )
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of input, weight and bias."""
        x, w, mean, rstd = ctx.saved_tensors
        g = g.contiguous(memory_format=torch.channels_last)
        gx, (n, channels, height, width) = torch.empty_like(x), x.shape
        gw, gb = (x.new_empty(n, channels) for _ in range(2))
        strides = (g.stride(0), g.stride(1), g.stride(3), x.stride(0), x.stride(1), x.stride(3))
        _group_norm_backward[n, mean.shape[1]](
            g, x, w, mean, rstd, gx, gw, gb, n // len(w), channels, height * width, *strides, **ctx.sizes
        )
        return gx, *(part.view(len(w), -1, channels).sum(1) for part in (gw, gb)), None, None


def _sizes(each: int, groups: int) -> dict[str, int]:
    """Channels and pixels of a group that a program reads at once: about two thousand numbers."""
    channels = int(triton.next_power_of_2(each))
    return {"EACH": each, "GROUPS": groups, "BC": channels, "BP": max(1, 2048 // channels)}
