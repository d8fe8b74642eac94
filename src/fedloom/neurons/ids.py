"""Neuron ids, which take the place of tensors during the walk.

The ids of a tensor are an integer tensor of its shape, with the neuron that emits each entry. Id 0 stands for all that
is never cut: the model's input, constants, padding.
"""

import torch
from torch import Tensor

FIXED = 0


class Spread(Exception):
    """Raised where no rule can cut neurons; the walk adds the step and reports it."""


def plain(shape: torch.Size) -> Tensor:
    """The ids of a tensor without neurons."""
    return torch.zeros((), dtype=torch.int64).expand(shape)


def spread(ids: Tensor, shape: torch.Size, axis: int) -> Tensor:
    """The ids of a tensor whose neurons run along one axis."""
    view = [1] * len(shape)
    view[axis] = -1
    return ids.view(view).expand(shape)


def axis_of(ids: Tensor) -> int | None:
    """The one axis along which neurons change; None if they change along none."""
    moving = [axis for axis in range(ids.dim()) if ids.stride(axis) and changes(ids, axis)]
    if len(moving) > 1:
        raise Spread(f"its neurons are spread over axes {moving[0]} and {moving[1]}; keep them on one axis")
    return moving[0] if moving else None


def changes(ids: Tensor, axis: int) -> bool:
    """Whether any neighbours along an axis are different neurons."""
    return bool((ids.narrow(axis, 1, ids.shape[axis] - 1) != ids.narrow(axis, 0, ids.shape[axis] - 1)).any())


def along(ids: Tensor, axis: int) -> Tensor:
    """The neurons along an axis; refuses an axis other than the one they run along."""
    found = axis_of(ids)
    if found is not None and found != axis % ids.dim():
        raise Spread(f"its neurons run along axis {found}, but it works along axis {axis % ids.dim()}")
    return ids.movedim(axis, -1).reshape(-1, ids.shape[axis])[0]


def settled(ids: Tensor) -> Tensor:
    """Check that ids change along one axis at most, and expand them without memory of their own."""
    axis = axis_of(ids)
    if axis is None:
        return ids.flatten()[0].expand(ids.shape)
    return spread(along(ids, axis), ids.shape, axis)
