"""Tables of a model's neurons, axes and costs, for the terminal."""

from collections.abc import Sequence
from itertools import groupby

import torch
from rich.table import Table
from torch import Tensor, nn

from fedloom.neurons.axes import FIXED_GROUP, Axes, Segment
from fedloom.neurons.footprint import EXECUTIONS, footprint
from fedloom.neurons.map import NeuronMap

SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)


def tables(map: NeuronMap, shares: Sequence[float] = SHARES) -> tuple[Table, Table, Table]:
    """Tables of the groups of neurons, the axes they run along, and the costs of some shares."""
    return groups_table(map), axes_table(map), costs_table(map, shares)


def groups_table(map: NeuronMap) -> Table:
    """Table of groups: neurons, tensors that have them, and whether they are cut."""
    table = Table("group", title="groups of neurons")
    table.add_column("neurons", justify="right")
    table.add_column("which are")
    table.add_column("tensors", justify="right")
    table.add_column("cut")
    for group, width in map.widths.items():
        owned = sum(any(s.group == group for axis in axes if axis for s in axis) for axes in map.axes.values())
        step = map.steps[group]
        cut = "no: output" if group in map.outputs else "yes" if step == 1 else f"in multiples of {step}"
        table.add_row(group, f"{width:,}", map.words.get(group, "outputs"), str(owned), cut)
    if map.across:
        table.caption = f"statistics over several neurons, so masking and slicing differ: {', '.join(map.across)}"
    return table


def axes_table(map: NeuronMap) -> Table:
    """Table of tensors with neurons: shape, and the neurons along each axis."""
    table = Table("tensor", "shape", "axes", title="axes of tensors")
    for tensor in map.tensors:
        axes = ", ".join("-" if axis is None else axis_text(axis) for axis in map.axes[tensor.name])
        if not any(which is not None and bool((map.lists[which] < map.full_size).any()) for which in tensor.along):
            continue
        table.add_row(tensor.name, " x ".join(f"{size}" for size in tensor.shape), axes)
    return table


def uncut(map: NeuronMap, tensor: Axes) -> bool:
    """Whether no axis of a tensor has neurons that can be cut."""
    return all(which is None or bool((map.lists[which] >= map.size).all()) for which in tensor.along)


def whole_table(map: NeuronMap) -> Table:
    """Table of layers that every client has whole: their parameters, and what share of all these are."""
    trained = [tensor for tensor in map.tensors if tensor.trained]
    total = sum(tensor.stop - tensor.start for tensor in trained)
    held: dict[str, int] = {}
    for tensor in trained:
        if uncut(map, tensor):
            layer = tensor.name.rpartition(".")[0] or tensor.name
            held[layer] = held.get(layer, 0) + tensor.stop - tensor.start
    table = Table("layer", title="whole for every client")
    table.add_column("parameters", justify="right")
    for layer, count in held.items():
        table.add_row(layer, f"{count:,} ({count / total:.1%})")
    table.add_row("all of these", f"{sum(held.values()):,} ({sum(held.values()) / total:.1%})")
    table.caption = "The width that residual blocks add to and norms read is kept whole, as are inputs and outputs."
    return table


def axis_text(axis: tuple[Segment, ...]) -> str:
    """An axis in words: groups joined by +, each neuron's entries after an x, repeats counted in front."""
    parts = []
    for segment, repeats in groupby(axis):
        times = len(list(repeats))
        fan = f" x {segment.fan}" if segment.fan > 1 else ""
        group = "whole" if segment.group == FIXED_GROUP else segment.group
        parts.append((f"{times} * " if times > 1 else "") + group + fan)
    return " + ".join(parts)


def costs_table(map: NeuronMap, shares: Sequence[float] = SHARES) -> Table:
    """Table of costs of the leading neurons of every group at each share, absolute and in per cent."""
    order = -torch.arange(map.size, dtype=torch.float64)  # the leading neurons score highest
    keep = map.cut(order, torch.tensor(shares, dtype=torch.float64))  # [shares, K]
    whole = torch.ones(map.size, dtype=torch.bool)
    table = Table("share", title="costs of a share of the neurons")
    for name in ("parameters", "FLOPs", "bytes"):
        table.add_column(name, justify="right")
    counts = [(map.parameters(k), map.flops(k), map.bytes(k)) for k in (keep, whole)]
    for row, share in enumerate(shares):
        cells = [f"{int(part[row]):,} ({float(part[row] / all_):.1%})" for part, all_ in zip(*counts)]
        table.add_row(f"{share:g}", *cells)
    table.caption = "FLOPs: one example forward, linear and convolution layers. Bytes: float32, with statistics."
    return table


def memory_table(
    model: nn.Module, example: Tensor, map: NeuronMap, batch: int = 1, shares: Sequence[float] = SHARES
) -> Table:
    """Table of bytes that training a share of the neurons holds, by how the network runs."""
    table = Table("share", title=f"memory of training, batch of {batch}")
    for name in EXECUTIONS:
        table.add_column(f"{name}, bytes", justify="right")
    whole = footprint(model, example, 1.0, batch, "sliced", map).total
    for share in shares:
        sizes = [footprint(model, example, share, batch, name, map).total for name in EXECUTIONS]
        table.add_row(f"{share:g}", *(f"{size:,} ({size / whole:.1%})" for size in sizes))
    table.caption = (
        "Weights, gradients and activations. Sliced: of the share. Frozen: the whole network runs, gradients are of "
        "the share. Active: frozen, but with the activations of the share only."
    )
    return table
