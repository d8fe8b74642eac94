"""Rules of functions that treat entries one by one, and of sums, means and softmaxes over some axes."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.neurons.calls import Call, tensors_in
from fedloom.neurons.ids import FIXED, Spread, emitted, loose, moving, plain, settled, small

STATISTICS = frozenset(("mean", "var", "std", "var_mean", "std_mean", "norm", "vector_norm", "linalg_vector_norm"))


def elementwise(call: Call) -> Tensor:
    """Unite neurons of operands that meet; a single neuron that scales many others stays apart."""
    return together(call, list(call.operands()), call.shape)


def together(call: Call, tensors: list[Tensor], shape: torch.Size) -> Tensor:
    """The ids of an answer of this shape, each entry of which depends on the entries of tensors at its place."""
    parts = [(tensor, raised(call.ids(tensor), len(shape))) for tensor in tensors]
    own = [ids for _, ids in parts if emitted(ids)]
    if not own:
        return entries(call, parts, shape)
    axes = sorted({axis for ids in own for axis in moving(ids)})
    if not axes:
        single: Tensor = max((ids.flatten()[0] for ids in own), key=int)
        return single.expand(shape)
    meeting = [ids for ids in own if moving(ids) or all(ids.shape[axis] > 1 for axis in axes)]
    most = max(meeting, key=lambda ids: small(ids).numel())
    for ids in meeting:
        if set(moving(ids)) <= set(moving(most)):
            call.wiring.unite(most, ids)
        else:
            call.wiring.fix(ids)  # the answer runs along axes of several: those of the most neurons can be cut
    found = small(most).expand(shape)
    for tensor, ids in parts:
        if loose(ids):
            call.wiring.meets.append((small(ids), small(found)))
        elif not emitted(ids):
            stands(call, tensor, found, axes)
    return found


def entries(call: Call, parts: list[tuple[Tensor, Tensor]], shape: torch.Size) -> Tensor:
    """The ids of an answer to which only bare parameters and constants lead."""
    bare = [ids for _, ids in parts if loose(ids)]
    if not bare:
        return plain(shape)
    found = max(bare, key=Tensor.numel).expand(shape)
    for ids in bare:
        call.wiring.unite(found, ids)
    for tensor, ids in parts:
        if not loose(ids):
            stands(call, tensor, found, list(range(len(shape))))
    return found


def stands(call: Call, constant: Tensor, ids: Tensor, axes: list[int]) -> None:
    """Hold the axes along which a constant has a number for each neuron."""
    lead = ids.dim() - constant.dim()
    for axis in axes:
        if axis >= lead and constant.shape[axis - lead] > 1 and constant.stride(axis - lead):
            call.wiring.hold(ids, axis)


def raised(ids: Tensor, rank: int) -> Tensor:
    """Ids with axes of size 1 in front."""
    return ids[(None,) * (rank - ids.dim())]


def same(call: Call) -> Tensor:
    """The ids of the first argument, of which other arguments may say the type."""
    return call.ids(call.args[0])


def blank(call: Call) -> Tensor:
    """A new tensor that has only the type of its argument."""
    return plain(call.shape)


def softmax(call: Call) -> Tensor:
    """Elementwise but for the sum over one axis, which may run over neurons."""
    x = call.ids(call.args[0])
    dim = call.argument(1, "dim")
    call.across(x, tuple(range(x.dim())) if dim is None else (dim,))
    return x


def normalised(call: Call) -> Tensor:
    """Divided by the norm over one axis, which may run over neurons; what it norms of each head is one neuron."""
    x = call.ids(call.args[0])
    dim = call.argument(2, "dim", 1) % x.dim()
    if dim in moving(x) and len(moving(x)) > 1:
        return call.wiring.merge(x, [dim]).expand(x.shape)
    call.across(x, (dim,), norm=True)
    return x


def ordered(call: Call) -> Any:
    """A running sum, a sort, a flip: works along an axis that must not be cut."""
    x = call.ids(call.args[0])
    dims = call.argument(len(call.args) - 1, "dim", range(x.dim()))
    for axis in [dims] if isinstance(dims, int) else dims:
        call.wiring.hold(x, axis)
    return [x.expand(part.shape) if part.shape == x.shape else plain(part.shape) for part in tensors_in(call.answer)]


def reduction(call: Call) -> Any:
    """A mean, sum or extreme over some axes. Those over neurons but means and norms keep them whole."""
    place = 2 if call.name in ("norm", "vector_norm", "linalg_vector_norm") else 1
    dims = call.argument(place, "dim")
    if isinstance(dims, Tensor):
        return elementwise(call)
    x = call.ids(call.args[0])
    if dims is None or isinstance(dims, bool) or (isinstance(dims, list | tuple) and not dims):
        dims = range(x.dim())
    axes = sorted({axis % x.dim() for axis in ([dims] if isinstance(dims, int) else dims)}) if x.dim() else []
    inside = [axis for axis in moving(x) if axis in axes]
    beside = [axis for axis in moving(x) if axis not in axes]
    if inside and beside:
        x = call.wiring.merge(x, inside).expand(x.shape)
    elif inside and call.name in STATISTICS:
        call.across(x, tuple(axes), norm=True)
        return [plain(part.shape) for part in tensors_in(call.answer)]
    elif inside:
        for axis in inside:
            call.wiring.hold(x, axis)
        return [plain(part.shape) for part in tensors_in(call.answer)]
    for axis in axes:
        x = x.narrow(axis, 0, 1)
    parts = tensors_in(call.answer)
    if parts[0].dim() != x.dim():
        x = x.squeeze(tuple(axes))
    return [x if part.shape == x.shape else plain(part.shape) for part in parts]


def following(call: Call) -> Any:
    """Pooling, resampling: axes without neurons may change size."""
    return [resized(call.ids(call.args[0]), part.shape) for part in tensors_in(call.answer)]


def resized(ids: Tensor, shape: torch.Size) -> Tensor:
    """Ids with other sizes of axes along which they do not change."""
    few = small(ids)
    if few.dim() != len(shape) or any(size not in (1, new) for size, new in zip(few.shape, shape)):
        raise Spread("it changes the size of an axis along which neurons run")
    return few.expand(shape)


def padding(call: Call) -> Tensor:
    """Channels that padding adds are fixed: the code gives their number as a literal."""
    ids, pad = small(call.ids(call.args[0])), list(call.argument(1, "pad"))
    for axis in range(ids.dim()):
        pair = 2 * (ids.dim() - 1 - axis)
        if ids.shape[axis] == 1 or len(pad) <= pair or not any(pad[pair : pair + 2]):
            continue
        if call.argument(2, "mode", "constant") != "constant":
            raise Spread("it mirrors the axis along which neurons run")
        ids = F.pad(ids.movedim(axis, -1), pad[pair : pair + 2], value=FIXED).movedim(-1, axis)
    return resized(settled(ids), call.shape)


def chosen(call: Call) -> Any:
    """`where`, `masked_fill`, `copy_`: as elementwise; a boolean operand without neurons has no say."""
    kept = [x for x in call.operands() if x.dtype != torch.bool or emitted(call.ids(x))]
    return together(call, kept or list(call.operands()), call.shape)


def prelu(call: Call) -> Tensor:
    """Elementwise, with one slope for all or one per channel."""
    x, weight = call.ids(call.args[0]), call.argument(1, "weight")
    if weight.numel() > 1:
        from fedloom.neurons.ids import along

        call.bind(weight, {0: along(x, 1)})
        call.resize(call.owner(weight), "num_parameters", along(x, 1))
    return x


def halves(call: Call) -> Tensor:
    """A gated linear unit: one half of an axis times a function of the other."""
    one, other = call.ids(call.args[0]).chunk(2, call.argument(1, "dim", -1))
    call.wiring.unite(one, other)
    return settled(one)
