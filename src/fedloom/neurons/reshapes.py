"""Rules of functions that move entries, take some out or put them together: the same is done to their ids."""

from types import EllipsisType
from typing import Any

import torch
from torch import Tensor

from fedloom.neurons.calls import Call, hosted, tensors_in
from fedloom.neurons.ids import emitted, loose, moving, plain, settled, small


def reshaping(call: Call) -> Any:
    """Move entries, and their neurons with them."""
    return [settled(ids) for ids in tensors_in(call.again())]


def folding(call: Call) -> Any:
    """Reshape; neurons that come to lie along two axes can be cut along one of them."""
    found = reshaping(call)
    call.wiring.folded.extend(found)
    return found


def casting(call: Call) -> Any:
    """`view` as another shape or, by its bytes, as another type."""
    if call.args[1:] and isinstance(call.args[1], torch.dtype):
        return call.ids(call.args[0])
    return folding(call)


def taking(call: Call) -> Any:
    """Indexing at places that the code names: those axes cannot be cut."""
    x = call.ids(call.args[0])
    if not isinstance(call.args[0], Tensor):
        return [plain(part.shape) for part in tensors_in(call.answer)]
    for axis in named_axes(call, x):
        call.wiring.hold(x, axis)
    return reshaping(call)


def named_axes(call: Call, x: Tensor) -> list[int]:
    """The axes of which a call takes places apart."""
    if call.name == "unbind":
        return [int(call.argument(1, "dim", 0))]
    if call.name in ("select", "narrow", "index_select", "gather", "take_along_dim", "roll", "flip"):
        dims = call.argument(2 if call.name == "roll" else 1, "dims" if call.name in ("roll", "flip") else "dim", 0)
        return [axis % x.dim() for axis in ([dims] if isinstance(dims, int) else dims)]
    index = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
    index = tuple(torch.tensor(part) if isinstance(part, list) else part for part in index)
    used = sum(part.dim() if _bools(part) else part is not None and part is not ... for part in index)
    axis = 0
    axes: list[int] = []
    for part in index:
        if part is None:
            continue
        if isinstance(part, EllipsisType):
            axis += x.dim() - used
            continue
        width = part.dim() if _bools(part) else 1
        if part != slice(None) if isinstance(part, slice) else True:
            axes += range(axis, axis + width)
        axis += width
    return axes


def _bools(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dtype == torch.bool


def writing(call: Call) -> Tensor:
    """`x[places] = value`: the entries become those of the value."""
    x, value = call.args[0], call.args[2]
    ids, found = call.ids(x), call.ids(value) if isinstance(value, Tensor) else None
    for axis in named_axes(call, ids):
        call.wiring.hold(ids, axis)
    if found is None:
        return ids
    before, after = ids, ids.clone(memory_format=torch.contiguous_format)
    after[hosted(call.args[1])] = found
    if not emitted(before) and not loose(before):
        return settled(after)
    call.wiring.unite(before, after)
    return before


def joining(call: Call) -> Tensor:
    """Join along the neurons' axis; unite the neurons along any other."""
    tensors: list[Tensor] = [x for x in call.argument(0, "tensors") if x.dim() == len(call.shape)]
    dim = call.argument(1, "dim", 0) % len(call.shape)
    parts = [call.ids(x) for x in tensors]
    across = [ids for ids in parts if any(axis != dim for axis in moving(ids)) and emitted(ids)]
    if not across:
        if not any(map(emitted, parts)):
            return settled(torch.cat(parts, dim))
        for x, ids in zip(tensors, parts):
            if loose(ids) and x.shape[dim] > 0:
                call.wiring.meets.append((small(ids), small(ids)))
        return settled(torch.cat(parts, dim))
    first = call.wiring.merge(across[0], [dim]) if dim in moving(across[0]) else across[0].narrow(dim, 0, 1)
    for ids in parts:
        call.wiring.unite(ids, first)
    return settled(first.expand(call.shape))


def stacking(call: Call) -> Tensor:
    """Put tensors side by side along a new axis; their neurons stay, and one of them has as many kept as the next."""
    tensors = list(call.argument(0, "tensors"))
    dim = call.argument(1, "dim", 0) % len(call.shape)
    parts = [call.ids(x) for x in tensors]
    for ids in parts[1:]:
        call.wiring.unite(parts[0], ids)
    return settled(parts[0].unsqueeze(dim).expand(call.shape))


def shuffling(call: Call) -> Tensor:
    """Interleave the channels of some groups: as many of each must stay."""
    x, groups = call.ids(call.args[0]), call.argument(1, "groups")
    apart = x.contiguous().view(len(x), groups, -1, *x.shape[2:])
    call.wiring.folded.append(settled(apart))
    return settled(apart.transpose(1, 2).reshape(x.shape))
