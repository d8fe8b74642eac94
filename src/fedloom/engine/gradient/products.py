"""Linear and convolution layers with a weight per client, and SGD fused into their backward pass.

Fusing saves writing and reading back a gradient as large as the cohort's weights: `w` takes its step inside the
product that would have made the gradient. A fused weight returns no gradient. Where only part of a weight is trained,
only that part's gradient is computed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

Grads = tuple[Tensor | None, Tensor | None]
Kept = tuple[Tensor | None, Tensor | None]  # how many inputs and outputs of a layer each client keeps [C]; None: all


class Step(NamedTuple):
    """`w <- shrink * w - rate * gradient`. A captured step reads its rate from a tensor, which the next round fills."""

    rate: float | Tensor
    shrink: float | Tensor = 1.0

    def shrunk(self, w: Tensor) -> Tensor:
        """`w` shrunk in place, before the gradient is subtracted."""
        return w if isinstance(self.shrink, float) and self.shrink == 1 else w.mul_(self.shrink)

    def take(self, w: Tensor, g: Tensor) -> None:
        """Take the step of `w` in place."""
        w = self.shrunk(w)
        if isinstance(self.rate, Tensor):
            w.sub_(g * self.rate)
        else:
            w.sub_(g, alpha=self.rate)

    def take_product(self, w: Tensor, g: Tensor, x: Tensor) -> None:
        """Take the step of `w` [C, o, i] in place with the gradient `g^T x`, which is not stored."""
        if isinstance(self.rate, Tensor) or isinstance(self.shrink, Tensor):
            self.shrunk(w).baddbmm_((g * -self.rate).mT, x)
        else:
            w.baddbmm_(g.mT, x, beta=self.shrink, alpha=-self.rate)

    def take_at(self, w: Tensor, at: Tensor, g: Tensor) -> None:
        """Take the step of the places `at` of `w` in place; `g` is their gradient."""
        assert isinstance(self.rate, float)  # parts are trained only where steps are not captured
        assert isinstance(self.shrink, float)
        if self.shrink != 1:
            g = g.add(w.index_select(0, at), alpha=(1 - self.shrink) / self.rate)
        w.index_add_(0, at, g, alpha=-self.rate)


class Part(NamedTuple):
    """The trained part of a weight [C, o, i, ...]: each client's own rows and columns; None: all.

    `at` are its places in the list of all clients' rows or, where columns are cut, of all clients' numbers.
    """

    rows: Tensor | None  # [C, r]
    columns: Tensor | None  # [C, c]
    at: Tensor  # [C, n]
    at_bias: Tensor  # [C, r] in the list of all clients' biases

    def of(self, clients: int) -> Part:
        """The part of the first `clients` clients."""
        if clients == len(self.at):
            return self
        return Part(*(None if index is None else index[:clients] for index in self))  # type: ignore[arg-type]

    def listed(self, w: Tensor) -> Tensor:
        """A weight, or a part of one, as the list that `at` indexes."""
        return w.flatten(0, 1).flatten(1) if self.columns is None else w.flatten()

    def spread(self, w: Tensor, b: Tensor | None, gw: Tensor, gb: Tensor | None) -> Grads:
        """The gradients of the part as gradients of the whole, zero elsewhere."""
        whole = torch.zeros_like(w)
        self.listed(whole).index_copy_(0, self.at.flatten(), self.listed(gw))
        if b is None or gb is None or self.rows is None:
            return whole, gb
        return whole, torch.zeros_like(b).scatter_(1, self.rows, gb)

    def take(self, step: Step, w: Tensor, b: Tensor | None, gw: Tensor, gb: Tensor | None) -> None:
        """Take the step of the part in place."""
        step.take_at(self.listed(w), self.at.flatten(), self.listed(gw))
        if b is not None and gb is not None:
            step.take_at(b.flatten(), self.at_bias.flatten(), gb.flatten())


def step_or_gradients(
    gw: Tensor, gb: Tensor | None, w: Tensor, b: Tensor | None, step: Step | None, part: Part | None
) -> Grads:
    """The gradients of weight and bias for autograd; None after their step, which is taken here if there is one."""
    if step is None:
        return (gw, gb) if part is None else part.spread(w, b, gw, gb)
    if part is not None:
        part.take(step, w, b, gw, gb)
        return None, None
    step.take(w, gw)
    if b is not None and gb is not None:
        step.take(b, gb)
    return None, None


class ClientLinear(torch.autograd.Function):
    """`x @ w^T + b` for inputs [C * B, ..., i], weights [C, o, i] and biases [C, o] or None."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        b: Tensor | None,
        step: Step | None,
        part: Part | None,
        low: bool,
    ) -> Tensor:
        """One batched product; `low`: of bfloat16 numbers."""
        rows = x.reshape(len(w), -1, x.shape[-1])
        ctx.save_for_backward(rows, w, b)
        ctx.shape, ctx.step, ctx.part, ctx.low = x.shape, step, part, low
        if low or b is None:
            out = _product(rows, w.mT, low)
            out = out if b is None else out.add_(b.unsqueeze(1))
        else:
            out = torch.baddbmm(b.unsqueeze(1), rows, w.mT)
        return out.view(*x.shape[:-1], w.shape[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """The input's gradient first: it needs the weight from before the step."""
        x, w, b = ctx.saved_tensors
        step, part = ctx.step, ctx.part
        g = g.reshape(len(w), -1, w.shape[1])
        gx = _product(g, w, ctx.low).view(ctx.shape) if ctx.needs_input_grad[0] else None
        if part is not None:
            g, x = _picked(g, part.rows), _picked(x, part.columns)
        gb = None if b is None else g.sum(1)
        if step is None or part is not None or ctx.low:
            return gx, *step_or_gradients(_product(g.mT, x, ctx.low), gb, w, b, step, part), None, None, None
        step.take_product(w, g, x)
        if b is not None and gb is not None:
            step.take(b, gb)
        return gx, None, None, None, None, None


def _product(a: Tensor, b: Tensor, low: bool) -> Tensor:
    """A batched product, of factors rounded to bfloat16 if `low`."""
    return torch.bmm(a.bfloat16(), b.bfloat16()).float() if low else torch.bmm(a, b)


def _picked(x: Tensor, index: Tensor | None) -> Tensor:
    """Each client's own entries [C, n] along the last axis of [C, B, features]."""
    return x if index is None else x.gather(2, index.unsqueeze(1).expand(-1, x.shape[1], -1))


class ClientConv(torch.autograd.Function):
    """A convolution per client, one after another: on CPUs this is faster than one grouped convolution for most shapes.

    Inputs [C * B, i, ...], weights [C, o, i, ...], biases [C, o] or None; `how` is (stride, padding, dilation, groups).
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        b: Tensor | None,
        how: tuple[Any, ...],
        step: Step | None,
        part: Part | None,
    ) -> Tensor:
        """Each client's own convolution."""
        x = ordered(x, w)  # one memory format throughout: mixed ones crashed torch 2.13's CPU kernels on tiny images
        ctx.save_for_backward(x, w, b)
        ctx.how, ctx.step, ctx.part = how, step, part
        stride, padding, dilation, groups = how
        none = [0] * len(stride)
        biases = [None] * len(w) if b is None else list(b)
        return cat_examples(
            [
                torch.ops.aten.convolution(one, w[c], biases[c], stride, padding, dilation, False, none, groups)
                for c, one in enumerate(x.chunk(len(w)))
            ]
        )

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of input, weight and bias, or the step itself."""
        x, w, b = ctx.saved_tensors
        part, wanted = ctx.part, ctx.needs_input_grad[0]
        gx, gw, gb = [], [], []
        for c, (own_g, own_x) in enumerate(zip(g.chunk(len(w)), x.chunk(len(w)))):
            if wanted or part is None:
                found = convolved_back(own_g, own_x, w[c], ctx.how, (wanted, part is None))
                gx.append(found[0])
            if part is not None:
                own_g, own_x = _channels(own_g, part.rows, c), _channels(own_x, part.columns, c)
                like = w[c, : own_g.shape[1], : own_x.shape[1]]
                found = convolved_back(own_g, own_x, like, ctx.how, (False, True))
            gw.append(found[1])
            if b is not None:
                gb.append(own_g.sum((0, *range(2, g.dim()))))
        grads = step_or_gradients(torch.stack(gw), torch.stack(gb) if gb else None, w, b, ctx.step, part)
        return cat_examples(gx) if wanted else None, *grads, None, None, None


def convolved_back(
    g: Tensor, x: Tensor, w: Tensor, how: tuple[Any, ...], wanted: tuple[bool, bool]
) -> tuple[Tensor, Tensor]:
    """One client's gradients of input and weight; torch's own of the bias takes several times as long as a sum."""
    stride, padding, dilation, groups = how
    none = [0] * len(stride)
    order = _order(x, w)
    g, x, w = (t.contiguous(memory_format=order) for t in (g, x, w))
    gx, gw, _ = torch.ops.aten.convolution_backward(
        g, x, w, None, stride, padding, dilation, False, none, groups, (*wanted, False)
    )
    return gx, gw


def ordered(x: Tensor, w: Tensor) -> Tensor:
    """Images [B, i, ...] for weights [..., o, i, h, w] on CPUs: channels last where that is quicker and safe.

    With two or three channels last, torch 2.13's gradient of the weight writes outside its memory.
    """
    return x.contiguous(memory_format=_order(x, w))


def _order(x: Tensor, w: Tensor) -> torch.memory_format:
    """The memory format for images of this shape."""
    large = x.dim() == 4 and x.dtype == torch.float32 and min(x.shape[2:]) >= 4
    last = large and x.shape[1] == w.shape[-3] and w.shape[-3] % 4 == w.shape[-4] % 4 == 0
    return torch.channels_last if last else torch.contiguous_format


def _channels(x: Tensor, index: Tensor | None, client: int) -> Tensor:
    """One client's own channels of [B, channels, ...], in the order of the rest."""
    if index is None:
        return x
    if x.dim() == 4 and x.stride(1) == 1 and x.is_contiguous(memory_format=torch.channels_last):  # else all is copied
        return x.permute(0, 2, 3, 1).index_select(3, index[client]).permute(0, 3, 1, 2)
    return x.index_select(1, index[client])


def cat_examples(parts: list[Tensor]) -> Tensor:
    """Concatenate clients' examples; a single client's are returned as they are."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)
