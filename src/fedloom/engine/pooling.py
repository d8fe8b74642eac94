"""Max-pooling of images on CPUs, in less time and memory than torch takes for it, and the order that images lie in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def order_of(x: Tensor) -> torch.memory_format:
    """The order by which torch's convolutions of images take less time and memory; tiny ones stay as they are."""
    last = x.dtype == torch.float32 and x.shape[1] > 1 and min(x.shape[2:]) > 3
    return torch.channels_last if last else torch.contiguous_format


class MaxPool(torch.autograd.Function):
    """Max-pooling of images on CPUs that keeps the places of the maxima but not the images."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, how: tuple[Any, ...]) -> Tensor:
        """As torch does it with channels last, which takes a fraction of the time."""
        ctx.how, ctx.shape = how, x.shape
        ctx.order = torch.contiguous_format if x.is_contiguous() else torch.channels_last
        out, places = _turned(x, how) if x.is_contiguous() else torch.ops.aten.max_pool2d_with_indices(x, *how)
        ctx.save_for_backward(places)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        """Each gradient to the place of its maximum."""
        (places,) = ctx.saved_tensors
        return put_back(g, places, ctx.shape, ctx.order, ctx.how), None


def _turned(x: Tensor, how: tuple[Any, ...]) -> list[Tensor]:
    """Maxima and places of images in plain order, a few at a time; quicker than without turning, copying included."""
    few = max(1, 2**16 * len(x) // max(1, x.numel()))
    found: list[Tensor] = []
    for first in range(0, len(x), few):
        some = x[first : first + few].contiguous(memory_format=torch.channels_last)
        parts = torch.ops.aten.max_pool2d_with_indices(some, *how)
        found = found or [part.new_empty(len(x), *part.shape[1:]) for part in parts]
        for whole, part in zip(found, parts):
            whole[first : first + few] = part
    return found


def put_back(g: Tensor, places: Tensor, shape: torch.Size, order: torch.memory_format, how: tuple[Any, ...]) -> Tensor:
    """Gradients of pooled images as gradients of the images of this shape, in this order."""
    like = torch.empty(shape, dtype=g.dtype, memory_format=order)  # only shape and order are read: it takes no memory
    g, places = (values.contiguous(memory_format=order) for values in (g, places))
    whole: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(g, like, *how, places)
    return whole


def halved(x: Tensor) -> Tensor:
    """The largest of every window of 2 x 2, without their places: whole rows first, as they lie side by side."""
    height, width = (size // 2 * 2 for size in x.shape[2:])
    rows = torch.maximum(x[:, :, 0:height:2], x[:, :, 1:height:2])
    return torch.maximum(rows[..., 0:width:2], rows[..., 1:width:2])
