"""Rules of products with weights: linear layers, convolutions, embeddings, and products of two activations."""

from math import prod
from typing import Any

import torch
from torch import Tensor

from fedloom.neurons.calls import Call
from fedloom.neurons.ids import Spread, emitted, loose, moving, plain, settled, small, spread


def linear(call: Call) -> Tensor:
    """`x @ weight.T + bias`: open neurons along the last axis."""
    return dense(call, call.args[0], call.argument(1, "weight"), call.argument(2, "bias"), outputs_first=True)


def dense(call: Call, x: Tensor, weight: Tensor, bias: Any, outputs_first: bool) -> Tensor:
    """A product of activations [..., in] with a parameter [out, in], or [in, out]."""
    if (other := call.transposed(weight)) is not None:
        weight, outputs_first = other, not outputs_first
    if call.name_of(weight) is None:
        raise Spread("its weight is computed, and not a parameter of the network")
    out = 0 if outputs_first else 1
    known = call.wiring.bound.get(call.name_of(weight) or "")
    again = known is not None and known.output != out  # its other axis has been opened before
    inputs, outputs = call.reads(x, -1), call.open(weight.shape[out], weight, suffix="T" if again else "")
    call.bind(weight, {out: outputs, 1 - out: inputs}, out, weight=True, positions=prod(call.shape[:-1]))
    call.bind(bias, {0: outputs}, weight=True)
    owner = call.owner(weight)
    call.resize(owner, "in_features", inputs)
    call.resize(owner, "out_features", outputs)
    call.resize(owner, "nx", inputs)
    call.resize(owner, "nf", outputs)
    return spread(outputs, call.shape, -1)


def added(call: Call) -> Tensor:
    """`addmm(bias, x, weight)`."""
    bias, x, weight = call.args[:3]
    if call.name_of(weight) is None and call.transposed(weight) is None:
        raise Spread("neither of its factors is a parameter of the network")
    return dense(call, x, weight, bias, outputs_first=False)


def convolution(call: Call) -> Tensor:
    """Open neurons along the channels; the groups of a grouped convolution stay whole."""
    x, weight, bias = call.args[0], call.argument(1, "weight"), call.argument(2, "bias")
    owner, axis = call.owner(weight), -(weight.dim() - 1)
    if call.name_of(weight) is None:
        raise Spread("its weight is computed, and not a parameter of the network")
    back = "transpose" in call.name
    inputs, groups = call.reads(x, axis), call.argument(6, "groups", 1)
    outputs = call.open(call.shape[axis], weight, "channels")
    counted = x.shape if back else call.shape
    positions = prod(counted) // counted[axis]
    ends = {0: inputs, 1: outputs} if back else {0: outputs, 1: inputs}
    axes, output = ends, 1 if back else 0
    if groups > 1:
        blocks = torch.cat([inputs.view(groups, -1), outputs.view(groups, -1)], 1)
        call.wiring.unite(blocks, blocks[:, :1])
        call.resize(owner, "groups", blocks[:, 0])
        axes, output = {0: ends[0]}, 0
    call.bind(weight, axes, output, weight=True, positions=positions)
    call.bind(bias, {0: outputs}, weight=True)
    call.resize(owner, "in_channels", inputs)
    call.resize(owner, "out_channels", outputs)
    return spread(outputs, call.shape, axis)


def embedding(call: Call) -> Tensor:
    """Open neurons along the last axis; words are never cut."""
    weight = call.argument(1, "weight")
    if call.name_of(weight) is None and isinstance(call.args[0], Tensor) and call.args[0].is_floating_point():
        weight = call.args[0]  # `embedding_bag` of older code
    if call.name_of(weight) is None:
        raise Spread("its weight is computed, and not a parameter of the network")
    outputs = call.open(weight.shape[1], weight, "numbers of a word")
    call.bind(weight, {1: outputs}, output=1, weight=True)
    call.resize(call.owner(weight), "embedding_dim", outputs)
    return spread(outputs, call.shape, -1)


def matrices(call: Call) -> Tensor:
    """A product of two activations, or with a parameter."""
    a, b = call.args[0], call.argument(1, "other" if call.name == "matmul" else "mat2")
    return multiplied(call, a, b, call.shape)


def batches_added(call: Call) -> Tensor:
    """`baddbmm(input, a, b)`."""
    first, a, b = call.args[:3]
    found = multiplied(call, a, b, call.shape)
    rest = call.ids(first)
    if emitted(rest):
        call.wiring.unite(found, rest)
    return found


def multiplied(call: Call, a: Tensor, b: Tensor, shape: torch.Size) -> Tensor:
    """The ids of `a @ b`."""
    if b.dim() == 2 and (call.name_of(b) is not None or call.transposed(b) is not None) and a.dim() > 1:
        return dense(call, a, b, None, outputs_first=False)
    if a.dim() < 2 or b.dim() < 2:
        raise Spread("it is a product with a vector")
    return met(call, (a, call.ids(a)), (b, call.ids(b)), shape)


def met(call: Call, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor], shape: torch.Size) -> Tensor:
    """The ids of a product of two activations, each given with its ids."""
    (a, x), (b, y) = left, right
    for ids in filter(loose, (x, y)):
        call.wiring.fix(ids)  # a parameter whose axes are not those of a layer is a constant here
    x, y = (plain(ids.shape) if loose(ids) else ids for ids in (x, y))
    rank = max(x.dim(), y.dim())
    x, y = x[(None,) * (rank - x.dim())], y[(None,) * (rank - y.dim())]
    lead = sorted({axis for ids in (x, y) for axis in moving(ids) if axis < rank - 2})
    flops = 2 * prod(shape) * a.shape[-1]
    if lead:
        return by_head(call, [(a, x), (b, y)], lead, shape, flops)
    inner = y.transpose(-1, -2)
    for ids, other in ((x, inner), (inner, x)):
        if rank - 1 in moving(ids):  # what is contracted is one neuron: the code scales by its size
            call.wiring.unite(ids, ids.flatten()[0])
            call.wiring.unite(ids.flatten()[0], other.flatten()[0]) if emitted(other) else call.wiring.fix(ids)
    rows, columns = x[..., :1], y[..., :1, :]
    if moving(rows) and moving(columns):
        call.wiring.unite(rows, columns)
    found = settled((rows if moving(rows) else columns).expand(shape)) if moving(rows) or moving(columns) else None
    call.product(small(plain(shape) if found is None else found).flatten(), flops)
    return plain(shape) if found is None else found


def by_head(call: Call, parts: list[tuple[Tensor, Tensor]], lead: list[int], shape: torch.Size, flops: int) -> Tensor:
    """Products of one index of a leading axis, a head, are one neuron: all that it reads and gives."""
    heads = None
    for _, ids in parts:
        if not emitted(ids):
            continue
        one = call.wiring.merge(ids, [axis for axis in moving(ids) if axis not in lead])
        for axis in range(one.dim() - 2, one.dim()):
            one = one.narrow(axis, 0, 1)
        if heads is not None:
            call.wiring.unite(heads, one)
        heads = one if heads is None or one.numel() > heads.numel() else heads
    assert heads is not None
    for tensor, ids in parts:
        if not emitted(ids):
            for axis in lead:
                place = axis - (heads.dim() - tensor.dim())
                if place >= 0 and tensor.shape[place] > 1 and tensor.stride(place):
                    call.wiring.hold(heads, axis)
    entries = small(heads).flatten()
    call.product(entries, flops)
    mark_heads(call, entries)
    return settled(heads.expand(shape))


def mark_heads(call: Call, ids: Tensor) -> None:
    """Remember that these neurons are heads."""
    call.wiring.heads.append(ids)
