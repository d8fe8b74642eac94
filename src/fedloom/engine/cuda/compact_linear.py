"""Linear layers over compact weights: each client's products end at its last kept neuron."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from fedloom.engine.cuda.convolution_kernels import or_placeholder, tile_of
from fedloom.engine.cuda.mlp_kernels import forward_kernel, input_gradient_kernel, weight_step_kernel
from fedloom.engine.cuda.mlp_step import precision, units
from fedloom.engine.gradient.products import Kept, Step


class CompactLinear(torch.autograd.Function):
    """`x @ w^T + b` for inputs [C * B, i], weights [C, o, i] and biases [C, o] or None.

    Each client keeps the first inputs and outputs, as many as `kept` says; results beyond them are zero.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, step: Step | None, kept: Kept) -> Tensor:
        """One program per tile of a client's outputs."""
        clients, outputs, inputs = w.shape
        rows = x.reshape(clients, -1, inputs).contiguous()
        ctx.save_for_backward(rows, w, b)
        ctx.step, ctx.kept = step, kept
        batch, (index, counts) = rows.shape[1], _first_step(clients, w.device)
        out = w.new_zeros(clients, batch, outputs)
        high, wide = tile_of(batch, 64), tile_of(outputs, 32)
        forward_kernel[triton.cdiv(outputs, wide), clients, triton.cdiv(batch, high)](
            rows, rows, w, w if b is None else b, out, rows, rows, rows, index, counts,
            *or_placeholder(kept, counts), batch, *_sizes(inputs, outputs), clients,
            **_cuts(inputs, outputs, kept), PICKS=False, BIAS=b is not None, RELU=False, LAST=False,
            PRECISION=precision(True), BM=high, BN=wide, BK=tile_of(inputs, 32), num_warps=4, num_stages=3,
        )  # fmt: skip
        return out.view(-1, outputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """The input's gradient first, since it needs the weight from before the step."""
        x, w, b = ctx.saved_tensors
        clients, outputs, inputs = w.shape
        g, gx = g.reshape(clients, -1, outputs).contiguous(), None
        if ctx.needs_input_grad[0]:
            gx = _input_gradient(g, w, ctx.kept).view(-1, inputs)
        if ctx.step is None:
            return gx, torch.bmm(g.mT, x), None if b is None else g.sum(1), None, None
        _step(x, g, w, b, ctx.step, ctx.kept)
        return gx, None, None, None, None


def _input_gradient(g: Tensor, w: Tensor, kept: Kept) -> Tensor:
    """The gradient of the inputs [C, B, i]."""
    (clients, outputs, inputs), batch = w.shape, g.shape[1]
    out, (index, counts), few = g.new_zeros(clients, batch, inputs), _first_step(clients, w.device), outputs <= 16
    high, wide = tile_of(batch, 64), tile_of(inputs, 64 if few else 32)
    input_gradient_kernel[triton.cdiv(inputs, wide), clients, triton.cdiv(batch, high)](
        g, w, g, out, index, counts, *or_placeholder(kept, counts), batch, *_sizes(inputs, outputs),
        **_cuts(inputs, outputs, kept), RELU=False, PRECISION=precision(not few),
        BM=high, BN=wide, BK=tile_of(outputs, 32), num_warps=4, num_stages=1 if few else 3,
    )  # fmt: skip
    return out


def _step(x: Tensor, g: Tensor, w: Tensor, b: Tensor | None, step: Step, kept: Kept) -> None:
    """Take the layer's step inside the product of its gradient."""
    (clients, outputs, inputs), batch = w.shape, g.shape[1]
    assert isinstance(step.rate, Tensor)  # kernels read it from memory
    w, b = step.shrunk(w), None if b is None else step.shrunk(b)
    index, counts = _first_step(clients, w.device)
    high, wide = tile_of(outputs, 32), tile_of(inputs, 128)
    tiles, bias = triton.cdiv(inputs, wide), w if b is None else b
    weight_step_kernel[tiles * triton.cdiv(outputs, high), clients](
        g, x, x, w, w, w, bias, bias, bias, w, step.rate, index, counts, *or_placeholder(kept, counts), batch,
        *_sizes(inputs, outputs), clients, 0.0, 0.0, **_cuts(inputs, outputs, kept), PICKS=False, BIAS=b is not None,
        MOVABLE=False, VELOCITY=False, SCALED=False, PRECISION=precision(False), TILES=tiles,
        BM=high, BN=wide, BK=tile_of(batch, 32), num_warps=4, num_stages=1,
    )  # fmt: skip


def _sizes(*ends: int) -> list[int]:
    """Inputs and outputs in units."""
    return [size // unit for size, unit in zip(ends, units(ends).values())]


def _cuts(inputs: int, outputs: int, kept: Kept) -> dict[str, int]:
    """The units, and whether inputs and outputs are cut."""
    return units((inputs, outputs)) | {"CUT_IN": kept[0] is not None, "CUT_OUT": kept[1] is not None}


@cache
def _first_step(clients: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Step index and step counts with which every client takes the step."""
    index = torch.zeros(1, dtype=torch.int64, device=device)
    return index, torch.ones(clients, dtype=torch.int64, device=device)
