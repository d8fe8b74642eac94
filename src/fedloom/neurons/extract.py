"""Smaller models of kept neurons: extraction from a model, and the way back."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.errors import BadModel
from fedloom.layout import flatten, layout_of, load
from fedloom.neurons.map import NeuronMap
from fedloom.neurons.trace import neuron_map

Keep = Tensor | Mapping[str, Tensor | Sequence[int]]


def extract(model: nn.Module, keep: Keep, example: Any = None, map: NeuronMap | None = None) -> nn.Module:
    """Copy the kept neurons of a model into a smaller model.

    Args:
        model: any module that `neuron_map` understands; it is left as it is.
        keep: bools over the model's neurons, or a mapping from groups to bools or indices.
        example: an input to derive the neurons with; not needed if `map` is given.
        map: the model's neurons, if they are known already.
    """
    map = resolve_map(model, example, map)
    flat = map.flat(keep)
    if flat.dim() != 1:
        raise BadModel(f"keep must be of one model, a vector; got shape {tuple(flat.shape)}. Extract one by one.")
    kept, counts = slices(map, flat)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    memo: dict[int, Any] = {}  # deepcopy takes tensors found here as they are, so it never copies a full one
    for axes in map.tensors:
        whole = tensors[axes.name]
        owners = axes.owners(rows=False)
        small = whole.detach() if owners else whole.detach().clone()
        for axis, which in owners:
            small = small.index_select(axis, kept[which].to(whole.device))
        memo[id(whole)] = nn.Parameter(small, whole.requires_grad) if isinstance(whole, nn.Parameter) else small
    copy = deepcopy(model, memo)
    for (layer, name, part), which in map.attributes:
        module, size = copy.get_submodule(layer), counts[which]
        if part is not None:
            sizes = list(getattr(module, name))
            sizes[part] = size
        setattr(module, name, size if part is None else tuple(sizes))
    return copy


def scatter(
    big: nn.Module, small: nn.Module, keep: Keep, example: Any = None, map: NeuronMap | None = None
) -> nn.Module:
    """Copy the big model with the small one's values at the kept neurons; integer buffers stay the big one's.

    Args:
        big: the model that `small` was extracted from; it is left as it is.
        small: the smaller model, trained or not.
        keep: the keep that it was extracted with.
        example: an input to derive the neurons with; not needed if `map` is given.
        map: the neurons of `big`, if they are known already.
    """
    map = resolve_map(big, example, map)
    index, shapes = slice_index(map, keep)
    inside = frozenset(axes.name for axes in map.tensors)
    layout, small_layout = layout_of(big, inside), layout_of(small, inside)
    expected = dict(zip(layout.names, shapes))
    got = dict(zip(small_layout.names, small_layout.shapes))
    for name in expected:
        if got.get(name) != expected[name]:
            raise BadModel(f"'{name}' of the small model must have shape {expected[name]} here; got {got.get(name)}.")
    flat = flatten(big, layout)
    values = flatten(small, small_layout)
    return load(deepcopy(big), layout, flat.scatter(0, index.to(flat.device), values.to(flat)))


def slice_index(
    map: NeuronMap, keep: Keep, widths: Sequence[int] | None = None
) -> tuple[Tensor, tuple[tuple[int, ...], ...]]:
    """Places of the kept numbers in the flat vector, [p] or [C, p], and the shapes of the small tensors.

    All clients of a cohort must keep equally many neurons of every group; which ones may differ. `flat.gather(-1,
    index)` is the small model and `flat.scatter(-1, index, small)` the way back. `widths`: how many entries of each of
    the map's lists are kept, as `slices` returned them before; then nothing is checked and the host does not wait for
    the device.
    """
    flat = map.flat(keep)
    kept, counts = slices(map, flat) if widths is None else (_kept(map, flat, widths), widths)
    lead = flat.shape[:-1]
    parts = []
    for axes in map.tensors:
        owners = dict(axes.owners(rows=False))
        place = torch.full((*lead, *(1,) * len(axes.shape)), axes.start, device=flat.device)
        stride = axes.stop - axes.start
        for axis, size in enumerate(axes.shape):
            stride //= size
            along = kept[owners[axis]] if axis in owners else torch.arange(size, device=flat.device).expand(*lead, size)
            place = place + stride * along.reshape(*lead, *(1,) * axis, -1, *(1,) * (len(axes.shape) - axis - 1))
        parts.append(place.reshape(*lead, -1))
    return torch.cat(parts, -1), slice_shapes(map, counts)


def slice_shapes(map: NeuronMap, counts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Shapes of the small tensors, given how many entries of each of the map's lists are kept."""
    shapes = []
    for axes in map.tensors:
        owners = dict(axes.owners(rows=False))
        shapes.append(tuple(counts[owners[a]] if a in owners else size for a, size in enumerate(axes.shape)))
    return tuple(shapes)


def slices(map: NeuronMap, keep: Keep) -> tuple[list[Tensor], Sequence[int]]:
    """Per list of the map, the places kept [..., n] and their number n; refuses a keep that cannot be sliced."""
    flat = map.flat(keep)
    for group, span in map.spans(flat.shape[-1]):
        if not bool(flat[..., span].any(-1).all()):
            raise BadModel(f"keep leaves no neuron of group '{group}'; a sub-model needs at least one of every group.")
    chosen = _chosen(map, flat)
    counts = (
        torch.stack([bools.sum(-1).reshape(-1) for bools in chosen]).tolist() if chosen else []
    )  # one wait for the device
    for number, row in enumerate(counts):
        if len(set(row)) > 1:
            name = next(t.name for t in map.tensors if number in t.along)
            raise BadModel(
                f"members of a cohort keep {min(row)} to {max(row)} entries along an axis of '{name}'; slice those "
                "that keep equally many neurons of every group together."
            )
    widths = [row[0] for row in counts]
    for layer, groups, which in map.divided:
        if widths[which] % groups:
            raise BadModel(
                f"group norm '{layer}' has {groups} groups, which do not divide the {widths[which]} of "
                f"{len(map.lists[which])} channels kept; keep a multiple of {groups}, as cut does."
            )
    return _kept(map, flat, widths), widths


def _chosen(map: NeuronMap, flat: Tensor) -> list[Tensor]:
    """Per list of the map, whether each entry's neuron is kept [..., n]."""
    padded = map.padded(flat)
    return [padded[..., entries] for entries in map.lists]


def _kept(map: NeuronMap, flat: Tensor, widths: Sequence[int]) -> list[Tensor]:
    """Per list of the map, the places kept [..., width]."""
    order = [bools.byte().argsort(dim=-1, descending=True, stable=True) for bools in _chosen(map, flat)]
    return [places[..., :width] for places, width in zip(order, widths)]


def resolve_map(model: nn.Module, example: Any, map: NeuronMap | None) -> NeuronMap:
    """The map that was given, checked against the model, or one derived from the example."""
    if map is None and example is None:
        raise BadModel("extract and scatter need an example input of the model, or its map; got neither.")
    if map is None:
        return neuron_map(model, example)
    layout = layout_of(model, frozenset(axes.name for axes in map.tensors))
    if [(axes.name, axes.shape) for axes in map.tensors] != [*zip(layout.names, layout.shapes)]:
        raise BadModel(
            f"map must be that of the {type(model).__name__}; got one of a model with other tensors, or others frozen."
        )
    return map
