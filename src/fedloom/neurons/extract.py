"""Smaller models of kept neurons: extraction from a model, and the way back."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fedloom.errors import BadModel
from fedloom.layout import flatten, layout_of, load
from fedloom.neurons.cut import Cut
from fedloom.neurons.map import NeuronMap
from fedloom.neurons.resized import set_attributes, sizes_of
from fedloom.neurons.slicing import Keep, slice_index, slices
from fedloom.neurons.trace import neuron_map


def extract(model: nn.Module, keep: Keep, example: Any = None, map: NeuronMap | None = None) -> nn.Module:
    """Copy the kept neurons of a model into a smaller model.

    Args:
        model: any module that `neuron_map` understands; it is left as it is.
        keep: bools over the model's neurons, or a mapping from groups to bools or indices.
        example: an input to derive the neurons with; not needed if `map` is given.
        map: the model's neurons, if they are known already.

    A network whose code writes down how many neurons there are, such as `x.view(batch, places, self.heads, size)`,
    comes back inside a `Cut`, which tells it otherwise; with an `example` only if it needs that.
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
    memos = dict(memo), dict(memo)
    plain = deepcopy(model, memos[0])
    set_attributes(plain, [(attribute, counts[which]) for attribute, which in map.attributes])
    if (
        not map.told
        and not map.states
        and not any(isinstance(layer, nn.MultiheadAttention) for layer in model.modules())
    ):
        return plain  # nothing but its layers knows how many neurons there are
    network, sizes = deepcopy(model, memos[1]), sizes_of(map, counts)
    set_attributes(network, sizes.attributes)
    cut = Cut(network, sizes)
    return plain if example is not None and _agree(plain, cut, example) else cut


def _agree(plain: nn.Module, cut: Cut, example: Any) -> bool:
    """Whether the module needs no telling: it runs as it is, and gives the same bits for the example.

    A branch may be scaled by a millionth, so nothing less would do; where all sizes are right, the same calls are made.
    """
    inputs = example if isinstance(example, tuple) else (example,)
    answers = []
    for module in (plain, cut):
        twin = deepcopy(module).eval()
        try:
            with torch.enable_grad():
                answers.append([x.detach() for x in tree_leaves(twin(*inputs)) if isinstance(x, Tensor)])
        except Exception:  # noqa: BLE001  sizes that do not fit stop a network anywhere
            return False
    ours, theirs = answers
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


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
    small = small.network if isinstance(small, Cut) else small
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
