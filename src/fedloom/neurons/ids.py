"""Neuron ids, which accompany tensors while a network is listened to.

The ids of a tensor are an integer tensor of its shape, with the neuron that emits each entry. Id 0 stands for all that
is never cut: the model's input, constants, padding. Ids from `LOOSE` on are entries of bare parameters, which belong to
whatever neurons they meet. Axes along which ids do not change take no memory (stride 0).
"""

import torch
from torch import Tensor

FIXED = 0
LOOSE = 1 << 40


class Spread(Exception):
    """Raised where no rule can cut neurons; the layer is then kept whole, with this as the reason."""


def plain(shape: torch.Size) -> Tensor:
    """The ids of a tensor without neurons."""
    return torch.zeros((), dtype=torch.int64).expand(shape)


def spread(ids: Tensor, shape: torch.Size, axis: int) -> Tensor:
    """The ids of a tensor whose neurons run along one axis."""
    view = [1] * len(shape)
    view[axis] = -1
    return ids.view(view).expand(shape)


def moving(ids: Tensor) -> list[int]:
    """The axes along which neurons change."""
    return [axis for axis in range(ids.dim()) if ids.stride(axis) and changes(ids, axis)]


def changes(ids: Tensor, axis: int) -> bool:
    """Whether any neighbours along an axis are different neurons."""
    if ids.shape[axis] < 2:
        return False
    return bool((ids.narrow(axis, 1, ids.shape[axis] - 1) != ids.narrow(axis, 0, ids.shape[axis] - 1)).any())


def small(ids: Tensor) -> Tensor:
    """The ids with size 1 along every axis along which they do not change."""
    for axis in range(ids.dim()):
        if ids.shape[axis] > 1 and (not ids.stride(axis) or not changes(ids, axis)):
            ids = ids.narrow(axis, 0, 1)
    return ids


def settled(ids: Tensor) -> Tensor:
    """The same ids, without memory for axes along which they do not change."""
    return ids if not ids.numel() else small(ids).expand(ids.shape)


def along(ids: Tensor, axis: int) -> Tensor:
    """The neurons along an axis; refuses ids that run along another."""
    found = moving(ids)
    other = [place for place in found if place != axis % ids.dim()]
    if other:
        raise Spread(f"its neurons run along axis {other[0]}, but it works along axis {axis % ids.dim()}")
    return ids.movedim(axis, -1).reshape(-1, ids.shape[axis])[0]


def emitted(ids: Tensor) -> bool:
    """Whether any of the ids are neurons of a layer."""
    few = small(ids) if ids.numel() else ids
    return bool(((few != FIXED) & (few < LOOSE)).any())


def loose(ids: Tensor) -> bool:
    """Whether any of the ids are entries of bare parameters."""
    return bool((ids >= LOOSE).any()) if not ids.numel() else bool((small(ids) >= LOOSE).any())
