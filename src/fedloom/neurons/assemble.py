"""Numbered groups of neurons from what has been heard: the last step to a map."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Set
from math import gcd, lcm

import torch
from torch import Tensor

from fedloom.layout import Layout
from fedloom.neurons.axes import Axes
from fedloom.neurons.components import Components, axes_of_entries
from fedloom.neurons.ids import FIXED, moving, small
from fedloom.neurons.map import NeuronMap
from fedloom.neurons.pairs import pairs_in
from fedloom.neurons.told import Told
from fedloom.neurons.wiring import Bound, Wiring

Groups = dict[str, list[int]]  # name -> the roots of its neurons, in order


def assemble(
    layout: Layout,
    wiring: Wiring,
    results: list[Tensor],
    base: Mapping[str, Tensor],
    width: bool = False,
    whole: Set[str] = frozenset(),
) -> NeuronMap:
    """Number the neurons, hidden ones first, then output classes, and write every axis in those numbers.

    Hidden neurons with numbers in the `base`, which is the same for all clients, are fixed, and groups in `whole`.
    """
    found = Components(wiring, results, base, width)
    hidden, outputs = groups_of(wiring, found)
    hidden = {name: neurons for name, neurons in hidden.items() if name not in whole}
    order = [neuron for neurons in (*hidden.values(), *outputs.values()) for neuron in neurons]
    number = torch.full((wiring.count + wiring.loose,), len(order))  # all fixed neurons share the number after the last
    number[torch.tensor(order, dtype=torch.int64)] = torch.arange(len(order))
    count = sum(map(len, hidden.values()))
    lists: dict[tuple[int, ...], int] = {}

    def listed(ids: Tensor) -> int:
        return lists.setdefault(tuple(number[found.of(ids)].tolist()), len(lists))

    def cuttable(ids: Tensor) -> bool:
        return bool((number[small(found.of(ids))] < count).any())

    batch = len(results[0])
    tensors = []
    start = 0
    for name, shape, size in zip(layout.names, layout.shapes, layout.sizes):
        bound = bound_of(wiring, found, name)
        along = {axis: listed(ids) for axis, ids in bound.axes.items()}
        tensors.append(
            Axes(
                name=name,
                shape=shape,
                start=start,
                along=tuple(along.get(axis) for axis in range(len(shape))),
                output=bound.output if bound.axes else None,
                trained=name in layout.parameters,
                weight=bound.weight,
                positions=bound.positions // batch,
            )
        )
        start += size
    across = [
        call.name
        for call in wiring.across
        if cuttable(call.ids) and (not call.axes or set(moving(found.of(call.ids))) & set(call.axes))
    ]
    widths = {name: len(neurons) for name, neurons in {**hidden, **outputs}.items()}
    attributes = tuple((attribute, listed(ids)) for attribute, ids in wiring.attributes.items())
    divided = tuple((name, parts, listed(ids)) for name, (parts, ids) in wiring.divided.items() if cuttable(ids))
    told = []
    for place, function, answers, dim in wiring.told:
        if dim is not None and any(set(moving(found.of(ids))) - {dim} for ids in answers):
            dim = None  # neurons run along another axis than that of the pieces
        if dim is not None and any(map(cuttable, answers)):
            axes: tuple[tuple[tuple[int, int], ...], ...] = tuple(((dim, listed(along_axis(x, dim))),) for x in answers)
        else:
            axes = tuple(told_axes(ids, found, cuttable, listed) for ids in answers)
        if any(axes):
            told.append(Told(place, function, axes))
    work = [(listed(product.ids), product.flops // batch) for product in wiring.products]
    heads = found.roots(wiring.heads)
    wiring.lost = found.lost
    return NeuronMap(
        groups=tuple(hidden),
        outputs=tuple(outputs),
        widths=widths,
        tensors=tuple(tensors),
        across=tuple(dict.fromkeys(across)),
        attributes=attributes,
        divided=divided,
        steps=steps_of({**hidden, **outputs}, {name: (n, found.of(ids)) for name, (n, ids) in wiring.divided.items()}),
        lists=tuple(torch.tensor(entries) for entries in lists),
        told=tuple(told),
        alike=alike_of(wiring, found, hidden),
        states=tuple(layer for layer, ids in wiring.states.items() if cuttable(ids)),
        work=tuple(work),
        words={name: word_of(wiring, name, neurons, heads) for name, neurons in hidden.items()},
        base_flops=sum(
            2 * value.numel() * (wiring.bound[name].positions // batch)
            for name, value in base.items()
            if name in wiring.bound
        ),
        pairs=pairs_in(wiring, tensors, [*lists], {name: widths[name] for name in hidden}, base),
    )


def bound_of(wiring: Wiring, found: Components, name: str) -> Bound:
    """The neurons along a tensor's axes, by its use in a layer or, for a bare parameter, by what its entries meet."""
    if name in wiring.bound:
        return wiring.bound[name]
    if name in wiring.entries:
        roots = found.of(wiring.entries[name])
        if bool((roots < wiring.count).any()):
            axes = axes_of_entries(roots)
            return Bound(dict(axes), next(iter(axes), 0), weight=False)
    return Bound({}, 0, weight=False)


def told_axes(ids: Tensor, found: Components, cuttable, listed) -> tuple[tuple[int, int], ...]:  # type: ignore[no-untyped-def]
    """The axes of an answer along which neurons run that can be cut, with their lists."""
    roots = found.of(ids)
    axes = moving(roots)
    if not axes or not cuttable(ids):
        return ()
    axis = axes[-1] if len(axes) > 1 else axes[0]  # in front of it, groups that keep equally many are laid out
    return ((axis, listed(along_axis(ids, axis))),)


def along_axis(ids: Tensor, axis: int) -> Tensor:
    """The ids along an axis, at the first place of all others."""
    return ids.movedim(axis, -1).reshape(-1, ids.shape[axis])[0]


def alike_of(wiring: Wiring, found: Components, hidden: Groups) -> tuple[tuple[str, ...], ...]:
    """The groups of layers that must keep equally many."""
    owner = {neuron: name for name, neurons in hidden.items() for neuron in neurons}
    sets = []
    for layers in wiring.alike:
        names = {owner.get(int(found.of(wiring.opened[layer])[0])) for layer in layers}
        sets.append(tuple(name for name in hidden if name in names))
    return tuple(names for names in dict.fromkeys(sets) if len(names) > 1)


def word_of(wiring: Wiring, name: str, neurons: list[int], heads: Tensor) -> str:
    """What the neurons of a group are called."""
    if neurons[0] in heads:
        return "heads"
    layer = name.split("+")[0].rstrip("'")
    return wiring.words.get(layer, "units")


def groups_of(wiring: Wiring, found: Components) -> tuple[Groups, Groups]:
    """Hidden and output groups: a group is all neurons that the same layers emit, named after the first of them."""
    emitters: dict[int, list[tuple[str, int]]] = defaultdict(list)
    ends = set(found.ends.tolist())
    for layer, ids in wiring.opened.items():
        for neuron, entries in Counter(found.of(ids).tolist()).items():
            emitters[neuron].append((layer, entries))
    alike: dict[tuple[bool, tuple[tuple[str, int], ...]], list[int]] = defaultdict(list)
    for neuron in sorted(emitters.keys() - {FIXED}):
        alike[neuron in ends, tuple(emitters[neuron])].append(neuron)
    groups: tuple[Groups, Groups] = {}, {}
    for (end, layers), neurons in alike.items():
        name = layers[0][0]
        taken = groups[0].keys() | groups[1].keys()
        if name in taken:
            name = "+".join(layer for layer, _ in layers)
        while name in taken:
            name += "'"
        groups[end][name] = neurons
    return groups


def steps_of(groups: Groups, divided: Mapping[str, tuple[int, Tensor]]) -> dict[str, int]:
    """Per group, the number that its kept neurons must be a multiple of, for the group norms that they pass."""
    steps = dict.fromkeys(groups, 1)
    for parts, ids in divided.values():
        entries = Counter(ids.tolist())
        for name, neurons in groups.items():
            for fan in {entries[neuron] for neuron in neurons} - {0}:
                steps[name] = lcm(steps[name], parts // gcd(parts, fan))
    return steps
