"""Numbered groups of neurons from a finished wiring: the last step from a walk to a map."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from math import gcd, lcm

import torch
from torch import Tensor

from fedloom.layout import Layout
from fedloom.neurons.axes import Axes
from fedloom.neurons.ids import FIXED
from fedloom.neurons.map import NeuronMap
from fedloom.neurons.wiring import Bound, Wiring

Groups = dict[str, list[int]]  # name -> the roots of its neurons, in order


def assemble(layout: Layout, wiring: Wiring, results: list[Tensor], base: Mapping[str, Tensor]) -> NeuronMap:
    """Number the neurons, hidden ones first, then output classes, and write every axis in those numbers.

    Hidden neurons with numbers in the `base`, which is the same for all clients, are fixed.
    """
    fix_base(wiring, base, results)
    root = torch.tensor([wiring.find(neuron) for neuron in range(len(wiring.parent))])
    ends = {int(root[neuron]) for ids in results for neuron in set(ids.flatten().tolist())}
    hidden, outputs = groups_of(wiring, root, ends)
    order = [neuron for neurons in (*hidden.values(), *outputs.values()) for neuron in neurons]
    number = torch.full_like(root, len(order))  # all fixed neurons share the number after the last
    number[torch.tensor(order, dtype=torch.int64)] = torch.arange(len(order))
    number = number[root]
    count = sum(map(len, hidden.values()))
    lists: dict[tuple[int, ...], int] = {}

    def listed(ids: Tensor) -> int:
        return lists.setdefault(tuple(number[ids].tolist()), len(lists))

    def cuttable(ids: Tensor) -> bool:
        return bool((number[ids] < count).any())

    return NeuronMap(
        groups=tuple(hidden),
        outputs=tuple(outputs),
        widths={name: len(neurons) for name, neurons in {**hidden, **outputs}.items()},
        tensors=axes_of(layout, wiring.bound, len(results[0]), listed),
        across=tuple(name for name, ids in wiring.across.items() if cuttable(ids)),
        attributes=tuple((attribute, listed(ids)) for attribute, ids in wiring.attributes.items()),
        divided=tuple((name, parts, listed(ids)) for name, (parts, ids) in wiring.divided.items() if cuttable(ids)),
        written=tuple((name, size, listed(ids)) for name, (size, ids) in wiring.written.items() if cuttable(ids)),
        steps=steps_of({**hidden, **outputs}, {name: (n, root[ids]) for name, (n, ids) in wiring.divided.items()}),
        lists=tuple(torch.tensor(entries) for entries in lists),
        base_flops=sum(
            2 * value.numel() * (wiring.bound[name].positions // len(results[0]))
            for name, value in base.items()
            if name in wiring.bound
        ),
    )


def fix_base(wiring: Wiring, base: Mapping[str, Tensor], results: list[Tensor]) -> None:
    """Unite the neurons along the axes of the base's tensors with the fixed one, but for output classes."""
    ends = {wiring.find(neuron) for ids in results for neuron in set(ids.flatten().tolist())}
    for name in wiring.bound.keys() & base.keys():
        for ids in wiring.bound[name].axes.values():
            own = torch.tensor(
                [n for n in set(ids.flatten().tolist()) if wiring.find(n) not in ends], dtype=torch.int64
            )
            wiring.unite(own, torch.full_like(own, FIXED))


def groups_of(wiring: Wiring, root: Tensor, ends: set[int]) -> tuple[Groups, Groups]:
    """Hidden and output groups: a group is all neurons that the same layers emit, named after the first of them."""
    emitters: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for layer, ids in wiring.opened.items():
        for neuron, entries in Counter(root[ids].tolist()).items():
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


def axes_of(
    layout: Layout, bound: Mapping[str, Bound], batch: int, listed: Callable[[Tensor], int]
) -> tuple[Axes, ...]:
    """Every tensor of the flat vector, with the neurons along its axes."""
    found, start = [], 0
    for name, shape, size in zip(layout.names, layout.shapes, layout.sizes):
        known = bound.get(name)
        along = {} if known is None else {axis: listed(ids) for axis, ids in known.axes.items()}
        found.append(
            Axes(
                name=name,
                shape=shape,
                start=start,
                along=tuple(along.get(axis) for axis in range(len(shape))),
                output=None if known is None else known.output,
                trained=name in layout.parameters,
                weight=known is not None and known.weight,
                positions=0 if known is None else known.positions // batch,
            )
        )
        start += size
    return tuple(found)


def steps_of(groups: Groups, divided: Mapping[str, tuple[int, Tensor]]) -> dict[str, int]:
    """Per group, the number that its kept neurons must be a multiple of, for the group norms that they pass."""
    steps = dict.fromkeys(groups, 1)
    for parts, ids in divided.values():
        entries = Counter(ids.tolist())
        for name, neurons in groups.items():
            for fan in {entries[neuron] for neuron in neurons} - {0}:
                steps[name] = lcm(steps[name], parts // gcd(parts, fan))
    return steps
