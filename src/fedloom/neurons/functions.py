"""Rules of layers without tensors, of functions and of methods: what each does to neurons."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.neurons.ids import FIXED, Spread, along, axis_of, plain, settled, spread
from fedloom.neurons.wiring import Call


def elementwise(call: Call) -> Tensor:
    """Unite neurons of operands that meet; an operand of size 1 on their axis is broadcast and stays apart."""
    operands = [x[(None,) * (len(call.shape) - x.dim())] for x in call.operands()]
    axes = {axis for x in operands if (axis := axis_of(x)) is not None}
    if len(axes) > 1:
        raise Spread(f"the neurons of its operands run along different axes ({', '.join(map(str, sorted(axes)))})")
    if not axes:
        return max((x.flatten()[0] for x in operands), key=int).expand(call.shape)
    axis = axes.pop()
    return spread(meet(call, [x for x in operands if x.shape[axis] > 1], axis), call.shape, axis)


def meet(call: Call, operands: list[Tensor], axis: int) -> Tensor:
    """Unite the operands' neurons along an axis, and return them."""
    first, *others = (along(x, axis) for x in operands)
    for other in others:
        call.wiring.unite(first, other)
    return first


def softmax(call: Call) -> Tensor:
    """Elementwise but for the sum over one axis, which may run over neurons."""
    x: Tensor = call.args[0]
    dim = call.argument(1, "dim", getattr(call.layer, "dim", None))
    axis = axis_of(x)
    if axis is not None and (dim is None or dim % x.dim() == axis):
        call.wiring.across[call.name] = along(x, axis)
    return x


def spatial(call: Call) -> Tensor:
    """Pooling, resampling and padding: channels stay, and the axes after them change size."""
    return spread(along(call.args[0], 1), call.shape, 1)


def reduction(call: Call) -> Any:
    """A mean, sum or extreme over axes without neurons; an extreme returns its indices as well."""
    x: Tensor = call.args[0]
    dims = call.argument(1, "dim")
    if isinstance(dims, Tensor):
        return elementwise(call)
    axes = [axis % x.dim() for axis in ([dims] if isinstance(dims, int) else dims or range(x.dim()))]
    if axis_of(x) in axes:
        raise Spread(f"it reduces over axis {axis_of(x)}, along which the neurons run")
    ids = x.amax(axes, keepdim=bool(call.argument(2, "keepdim", False)))
    return (ids, ids) if call.kind in (torch.max, torch.min, "max", "min") else ids


def reshaping(call: Call) -> Tensor:
    """Move entries, and their neurons with them."""
    first, *rest = call.args
    return settled(call.run(first.contiguous(), *rest, **call.kwargs))  # view refuses expanded ids


def sizing(call: Call) -> Tensor:
    """Reshape to given sizes; a literal size that counts neurons is recorded."""
    ids = reshaping(call)
    sizes = call.written[1:]
    if len(sizes) == 1 and isinstance(sizes[0], list | tuple):
        sizes = tuple(sizes[0])
    return record_size(call, ids, sizes, 0)


def unflatten(call: Call) -> Tensor:
    """Split one axis into several; a literal size that counts neurons is recorded."""
    dim = call.argument(1, "dim", getattr(call.layer, "dim", None))
    sizes = call.written[2] if call.layer is None else call.layer.unflattened_size
    return record_size(call, reshaping(call), tuple(sizes), dim % call.args[0].dim())


def record_size(call: Call, ids: Tensor, sizes: tuple[Any, ...], first: int) -> Tensor:
    """Record a literal size of the neurons' axis; `sizes` are those of the axes from `first` on."""
    axis = axis_of(ids)
    if axis is not None and first <= axis < first + len(sizes):
        size = sizes[axis - first]
        if isinstance(size, int) and size != -1:
            call.wiring.written[call.name] = size, along(ids, axis)
    return ids


def picking(call: Call) -> Any:
    """Indexing and splitting along axes without neurons."""
    x = call.args[0]
    picked = call.run(*call.args, **call.kwargs)
    if not isinstance(x, Tensor):
        return picked
    axis = axis_of(x)
    for ids in (picked,) if isinstance(picked, Tensor) else picked:
        kept = axis_of(ids)
        if axis is not None and (kept is None or not torch.equal(along(ids, kept), along(x, axis))):
            raise Spread(f"it takes apart axis {axis}, along which the neurons run")
    return picked


def concatenation(call: Call) -> Tensor:
    """Join along the neurons' axis; unite the neurons along any other."""
    parts: list[Tensor] = list(call.argument(0, "tensors"))
    dim = call.argument(1, "dim", 0) % parts[0].dim()
    axes = {axis for x in parts if (axis := axis_of(x)) is not None}
    if axes <= {dim}:
        return settled(torch.cat(parts, dim))
    axis = (axes - {dim}).pop()
    return spread(meet(call, parts, axis), call.shape, axis)


def padding(call: Call) -> Tensor:
    """Channels that padding adds are fixed: the code gives their number as a literal."""
    x: Tensor = call.args[0]
    axis = axis_of(x)
    if axis is None:
        return plain(call.shape)
    pad = call.argument(1, "pad")
    pair = 2 * (x.dim() - 1 - axis)
    before, after = pad[pair : pair + 2] if len(pad) > pair else (0, 0)
    return spread(F.pad(along(x, axis), (before, after), value=FIXED), call.shape, axis)
