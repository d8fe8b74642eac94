"""Linear and convolution layers with another weight for every client, and SGD fused into their backward pass.

Fusing saves writing and reading back a gradient as large as the cohort's weights: `w` takes its step inside the
product that would have made the gradient. A fused weight returns no gradient.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Step(NamedTuple):
    """`w <- shrink * w - rate * gradient`."""

    rate: float
    shrink: float


class ClientLinear(torch.autograd.Function):
    """`x @ w^T + b` for inputs [C, B, i], weights [C, o, i] and biases [C, o] or None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, step: Step | None) -> Tensor:
        """One batched product."""
        ctx.save_for_backward(x, w, b)
        ctx.step = step
        return torch.bmm(x, w.mT) if b is None else torch.baddbmm(b.unsqueeze(1), x, w.mT)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """The input's gradient first: it needs the weight from before the step."""
        x, w, b = ctx.saved_tensors
        gx = torch.bmm(g, w) if ctx.needs_input_grad[0] else None
        if ctx.step is None:
            return gx, torch.bmm(g.mT, x), None if b is None else g.sum(1), None
        rate, shrink = ctx.step
        w.baddbmm_(g.mT, x, beta=shrink, alpha=-rate)
        if b is not None:
            b.mul_(shrink).sub_(g.sum(1), alpha=rate)
        return gx, None, None, None


class ClientConv(torch.autograd.Function):
    """A convolution per client, one after another: on CPUs this beats one grouped convolution for most shapes.

    Inputs [C, B, i, ...], weights [C, o, i, ...], biases [C, o] or None; `how` is (stride, padding, dilation, groups).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, how: tuple[Any, ...], step: Step | None) -> Tensor:
        """Each client's own convolution."""
        ctx.save_for_backward(x, w, b)
        ctx.how, ctx.step = how, step
        stride, padding, dilation, groups = how
        none = [0] * len(stride)
        biases = [None] * len(w) if b is None else list(b)
        return torch.stack(
            [
                torch.ops.aten.convolution(x[c], w[c], biases[c], stride, padding, dilation, False, none, groups)
                for c in range(len(w))
            ]
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of input, weight and bias, or the step itself."""
        x, w, b = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.how
        wanted = [ctx.needs_input_grad[0], True, b is not None]
        sizes = None if b is None else [w.shape[1]]
        found = [
            torch.ops.aten.convolution_backward(
                g[c], x[c], w[c], sizes, stride, padding, dilation, False, [0] * len(stride), groups, wanted
            )
            for c in range(len(w))
        ]
        gx = torch.stack([one[0] for one in found]) if wanted[0] else None
        gw = torch.stack([one[1] for one in found])
        gb = None if b is None else torch.stack([one[2] for one in found])
        if ctx.step is None:
            return gx, gw, gb, None, None
        rate, shrink = ctx.step
        w.mul_(shrink).sub_(gw, alpha=rate)
        if b is not None and gb is not None:
            b.mul_(shrink).sub_(gb, alpha=rate)
        return gx, None, None, None, None
