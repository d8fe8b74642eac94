"""The places of kept neurons' numbers in the flat vector, and the shapes of small tensors."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedloom.errors import BadModel
from fedloom.neurons.map import NeuronMap

Keep = Tensor | Mapping[str, Tensor | Sequence[int]]


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
    refuse_unlike(map, flat)
    chosen = _chosen(map, flat)
    counts = (
        torch.stack([bools.sum(-1).reshape(-1) for bools in chosen]).tolist() if chosen else []
    )  # one wait for the device
    for number, row in enumerate(counts):
        if len(set(row)) > 1:
            name = next((t.name for t in map.tensors if number in t.along), "an activation")
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


def refuse_unlike(map: NeuronMap, flat: Tensor) -> None:
    """Refuse groups of one layer that must keep equally many neurons and do not."""
    for groups in map.alike:
        numbers = {group: flat[..., span].sum(-1) for group, span in map.spans(flat.shape[-1]) if group in groups}
        first = next(iter(numbers))
        for group, number in numbers.items():
            if not torch.equal(number, numbers[first]):
                raise BadModel(
                    f"groups '{first}' and '{group}' belong to one layer, which has equally many neurons of both; got "
                    f"{numbers[first].tolist()} and {number.tolist()}. Keep as many of each, as cut does."
                )
