"""Triton kernels for convolutions with a weight per client, as implicit matrix products: nothing is unfolded.

One program makes a tile of one client's result. Along the sum, taps and channels are one axis with channels fastest,
so that images with channels last are read in runs. Sums are float32 whatever the precision of the products.

Where clients keep only the first channels (CUT), sums leave out the others, and results there are zero.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedloom.engine.gradient.products import Kept

How = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]  # stride, padding, dilation


@triton.jit  # type: ignore[untyped-decorator]
def _channels(kept, client, SIZE, CUT: tl.constexpr, UNIT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Channels of a client that count, rounded up to units, which are read at once."""
    if CUT:
        return (tl.load(kept + client) + UNIT - 1) // UNIT * UNIT
    else:
        return SIZE


@triton.jit  # type: ignore[untyped-decorator]
def _places(k, channels, KC: tl.constexpr, CUT: tl.constexpr, UNIT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Channel and tap at places along the sum."""
    if CUT:
        unit, units = k // UNIT, channels // UNIT
        return (unit % units) * UNIT + k % UNIT, unit // units
    else:
        return k % KC, k // KC


@triton.jit  # type: ignore[untyped-decorator]
def _convolve(  # type: ignore[no-untyped-def]
    src, wgt, bias, out, kept_k, kept_n,
    BATCH, MH, MW, SH, SW, NC,  # rows of the result are (example, MH, MW); the source is SH by SW
    src_n, src_c, src_h, src_w, out_n, out_c, out_h, out_w, wgt_client, wgt_n, wgt_k, wgt_r, wgt_s,
    KC: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    DIL_H: tl.constexpr, DIL_W: tl.constexpr,
    BACK: tl.constexpr, BIAS: tl.constexpr, LOW: tl.constexpr, PRECISION: tl.constexpr,
    CUT_K: tl.constexpr, CUT_N: tl.constexpr, UNIT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A convolution or, BACK, the gradient of its input."""
    client, tile = tl.program_id(1), tl.program_id(0)
    n = tl.program_id(2) * BN + tl.arange(0, BN)
    m = tile * BM + tl.arange(0, BM)
    inside = m < BATCH * MH * MW
    b, mh, mw = m // (MH * MW), (m // MW) % MH, m % MW
    base = src + (client * BATCH + b).to(tl.int64) * src_n
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    channels, columns = _channels(kept_k, client, KC, CUT_K, UNIT), _channels(kept_n, client, NC, CUT_N, 1)
    depth = R * S * channels if CUT_K else R * S * KC
    if CUT_N:  # a tile without a kept channel
        depth = tl.where(tl.program_id(2) * BN < columns, depth, 0)
    for first in range(0, depth, BK):
        k = first + tl.arange(0, BK)
        kc, tap = _places(k, channels, KC, CUT_K, UNIT)
        there = k // UNIT < depth // UNIT
        r, s = tap // S, tap % S
        if BACK:
            th = mh[:, None] + PAD_H - r[None, :] * DIL_H
            tw = mw[:, None] + PAD_W - s[None, :] * DIL_W
            h, w = th // STRIDE_H, tw // STRIDE_W
            seen = (th >= 0) & (tw >= 0) & (h < SH) & (w < SW)
            if STRIDE_H > 1:
                seen = seen & (th % STRIDE_H == 0)
            if STRIDE_W > 1:
                seen = seen & (tw % STRIDE_W == 0)
        else:
            h = mh[:, None] * STRIDE_H - PAD_H + r[None, :] * DIL_H
            w = mw[:, None] * STRIDE_W - PAD_W + s[None, :] * DIL_W
            seen = (h >= 0) & (w >= 0) & (h < SH) & (w < SW)
        seen = seen & inside[:, None] & there[None, :]
        a = tl.load(base[:, None] + h * src_h + w * src_w + kc[None, :] * src_c, mask=seen, other=0.0)
        at = client.to(tl.int64) * wgt_client + (kc * wgt_k + r * wgt_r + s * wgt_s)[:, None] + n[None, :] * wgt_n
        v = tl.load(wgt + at, mask=there[:, None] & (n < columns)[None, :], other=0.0)
        if LOW:  # noqa: SIM108
            acc = tl.dot(a.to(tl.bfloat16), v.to(tl.bfloat16), acc)
        else:
            acc = tl.dot(a, v, acc, input_precision=PRECISION)
    if BIAS:
        acc += tl.load(bias + client * NC + n, mask=n < columns, other=0.0)[None, :]
    to = (client * BATCH + b).to(tl.int64) * out_n + mh * out_h + mw * out_w
    tl.store(out + to[:, None] + n[None, :] * out_c, acc, mask=inside[:, None] & (n < NC)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _weight_gradient(  # type: ignore[no-untyped-def]
    src, grad, out, out_bias, kept_k, kept_o,
    BATCH, OH, OW, SH, SW, OC, CLIENTS, PER,
    src_n, src_c, src_h, src_w, grad_n, grad_c, grad_h, grad_w,
    KC: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    DIL_H: tl.constexpr, DIL_W: tl.constexpr,
    LOW: tl.constexpr, PRECISION: tl.constexpr, CUT_K: tl.constexpr, CUT_O: tl.constexpr, UNIT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Gradient of the weights: out [parts, clients, OC, (tap, channel)]; each part sums its share of the places."""
    client, part = tl.program_id(1), tl.program_id(2)
    row_tile, column_tile = tl.program_id(0) // TILES, tl.program_id(0) % TILES
    rows, channels = _channels(kept_o, client, OC, CUT_O, 1), _channels(kept_k, client, KC, CUT_K, UNIT)
    columns = R * S * channels
    if CUT_O or CUT_K:  # noqa: SIM102  a compile-time condition
        if (row_tile * BM >= rows) | (column_tile * BN >= columns):
            return
    o, k = row_tile * BM + tl.arange(0, BM), column_tile * BN + tl.arange(0, BN)
    kc, tap = _places(k, channels, KC, CUT_K, UNIT)
    there = k // UNIT < columns // UNIT
    r, s = tap // S, tap % S
    places = BATCH * OH * OW
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    bias = tl.zeros((BM,), dtype=tl.float32)
    for first in range(part * PER, part * PER + PER, BK):
        q = first + tl.arange(0, BK)
        inside = q < places
        b, oh, ow = q // (OH * OW), (q // OW) % OH, q % OW
        example = (client * BATCH + b).to(tl.int64)
        g = tl.load(
            grad + (example * grad_n + oh * grad_h + ow * grad_w)[None, :] + o[:, None] * grad_c,
            mask=(o < rows)[:, None] & inside[None, :], other=0.0,
        )  # fmt: skip
        bias += tl.sum(g, 1)
        h = oh[:, None] * STRIDE_H - PAD_H + r[None, :] * DIL_H
        w = ow[:, None] * STRIDE_W - PAD_W + s[None, :] * DIL_W
        seen = (h >= 0) & (w >= 0) & (h < SH) & (w < SW) & inside[:, None] & there[None, :]
        x = tl.load(
            src + (example * src_n)[:, None] + h * src_h + w * src_w + kc[None, :] * src_c, mask=seen, other=0.0
        )
        if LOW:  # noqa: SIM108
            acc = tl.dot(g.to(tl.bfloat16), x.to(tl.bfloat16), acc)
        else:
            acc = tl.dot(g, x, acc, input_precision=PRECISION)
    at = ((part * CLIENTS + client).to(tl.int64) * OC + o[:, None]) * (R * S * KC) + (tap * KC + kc)[None, :]
    tl.store(out + at, acc, mask=(o < rows)[:, None] & there[None, :])
    if column_tile == 0:
        tl.store(out_bias + (part * CLIENTS + client) * OC + o, bias, mask=o < rows)


Tile = tuple[int, int, int, int, int]  # rows, columns and depth of a tile, warps, stages
ALL: Kept = (None, None)


def convolve(
    x: Tensor, w: Tensor, b: Tensor | None, how: How, precision: str, kept: Kept = ALL, tile: Tile | None = None
) -> Tensor:
    """Each client's convolution: x [C * B, i, H, W], w [C, o, i, R, S], b [C, o]; the result has channels last."""
    clients, outputs, _, *kernel = w.shape
    sizes = [_after(x.shape[2 + a], kernel[a], how[0][a], how[1][a], how[2][a]) for a in (0, 1)]
    out = _images((len(x), outputs, *sizes), x)
    bias = None if b is None else b.contiguous()  # it may be a view of all of a client's numbers, and is read in a row
    _launch(x, w, bias, out, (w.stride(1), w.stride(2)), clients, how, precision, False, kept, tile)
    return out


def input_gradient(
    g: Tensor, w: Tensor, like: Tensor, how: How, precision: str, kept: Kept = ALL, tile: Tile | None = None
) -> Tensor:
    """Gradient of the inputs, which have the shape of `like`."""
    out = _images(tuple(like.shape), g)
    _launch(g, w, None, out, (w.stride(2), w.stride(1)), len(w), how, precision, True, kept[::-1], tile)
    return out


def weight_gradient(
    g: Tensor, x: Tensor, w: Tensor, how: How, precision: str, kept: Kept = ALL, tile: Tile | None = None
) -> tuple[Tensor, Tensor]:
    """Gradients of the weights [C, o, i, R, S] and of the biases [C, o]."""
    clients, outputs, inputs, *kernel = w.shape
    batch, columns = len(x) // clients, inputs * kernel[0] * kernel[1]
    places = batch * g.shape[2] * g.shape[3]
    cut = kept[0] is not None
    rows_at_once, columns_at_once, depth, warps, stages = tile or (
        tile_of(outputs, 32), *((tile_of(columns, 128), 32, 4, 3) if cut else _weight_tile(outputs, inputs, columns))
    )  # fmt: skip
    kept = kept[0], kept[1] if outputs > rows_at_once else None  # a single tile has nothing to leave out
    tiles = triton.cdiv(columns, columns_at_once)
    programs = clients * tiles * triton.cdiv(outputs, rows_at_once)
    parts = max(1, min(16, 1024 // programs, places // 512))  # enough programs for every multiprocessor
    per = triton.cdiv(triton.cdiv(places, parts), depth) * depth
    fill = torch.empty if kept == ALL else torch.zeros  # tiles of channels that are not kept write nothing
    out = fill((parts, clients, outputs, columns), dtype=torch.float32, device=g.device)
    bias = fill((parts, clients, outputs), dtype=torch.float32, device=g.device)
    grid = (tiles * triton.cdiv(outputs, rows_at_once), clients, parts)
    _weight_gradient[grid](
        x, g, out, bias, *or_placeholder(kept, x), batch, *g.shape[2:], *x.shape[2:], outputs, clients, per,
        *x.stride(), *g.stride(),
        KC=inputs, R=kernel[0], S=kernel[1], **_named(how),
        LOW=precision == "bf16", PRECISION="tf32" if precision == "tf32" else "ieee",
        CUT_K=cut, CUT_O=kept[1] is not None, UNIT=_unit(inputs, kept[0]),
        BM=rows_at_once, BN=columns_at_once, BK=depth, TILES=tiles, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    whole, whole_bias = (part[0] if parts == 1 else part.sum(0) for part in (out, bias))
    return whole.view(clients, outputs, *kernel, inputs).permute(0, 1, 4, 2, 3), whole_bias


def _weight_tile(outputs: int, inputs: int, columns: int) -> tuple[int, int, int, int]:
    """Columns and depth of a tile, warps, stages: the fastest tried on one H200 (benchmarks/results/gpu.md)."""
    if columns <= 32:
        return 32, 64, 4, 3
    if outputs <= 16:
        return 64, 64, 4, 3
    return (32, 64, 4, 2) if inputs % 16 == 0 else (64, 32, 4, 3)


def _launch(
    src: Tensor,
    w: Tensor,
    b: Tensor | None,
    out: Tensor,
    strides: tuple[int, int],
    clients: int,
    how: How,
    precision: str,
    back: bool,
    kept: Kept,
    tile: Tile | None,
) -> None:
    """Launch one program per tile; `strides` are the weight's along the channels of the result and of the source.

    `kept`: channels kept of the source and of the result.
    """
    batch, channels, height, width = len(src) // clients, out.shape[1], *out.shape[2:]
    cut = kept[0] is not None
    short = src.shape[1] * w.shape[3] * w.shape[4] <= 32  # one iteration of the loop
    rows_at_once, columns_at_once, depth, warps, stages = tile or (
        128, tile_of(channels, 64), 32 if short else 16, *((4, 2) if cut or back else (4, 3) if short else (8, 3))
    )  # fmt: skip
    kept = kept[0], kept[1] if channels > columns_at_once else None  # a single tile has nothing to leave out
    grid = (triton.cdiv(batch * height * width, rows_at_once), clients, triton.cdiv(channels, columns_at_once))
    _convolve[grid](
        src, w, src if b is None else b, out, *or_placeholder(kept, src), batch, height, width, *src.shape[2:],
        channels,
        *src.stride(), *out.stride(), w.stride(0), *strides, w.stride(3), w.stride(4),
        KC=src.shape[1], R=w.shape[3], S=w.shape[4], **_named(how),
        BACK=back, BIAS=b is not None, LOW=precision == "bf16", PRECISION="tf32" if precision == "tf32" else "ieee",
        CUT_K=cut, CUT_N=kept[1] is not None, UNIT=_unit(src.shape[1], kept[0]),
        BM=rows_at_once, BN=columns_at_once, BK=depth, num_warps=warps, num_stages=stages,
    )  # fmt: skip


def or_placeholder(kept: Kept, other: Tensor) -> list[Tensor]:
    """`kept`, with another tensor as a placeholder where it is None and not read."""
    return [other if own is None else own for own in kept]


def _unit(channels: int, kept: Tensor | None) -> int:
    """Units in which kept channels are counted."""
    return 4 if kept is not None and channels % 4 == 0 else 1


def _named(how: How) -> dict[str, Any]:
    """Stride, padding and dilation by the kernels' names."""
    (sh, sw), (ph, pw), (dh, dw) = how
    return {"STRIDE_H": sh, "STRIDE_W": sw, "PAD_H": ph, "PAD_W": pw, "DIL_H": dh, "DIL_W": dw}


def _images(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Uninitialised images with channels last."""
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def tile_of(size: int, most: int) -> int:
    """The power of two that holds a size, at least 16 and at most `most`."""
    return int(max(16, min(most, triton.next_power_of_2(size))))


def _after(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Size of an image's axis after the convolution."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
