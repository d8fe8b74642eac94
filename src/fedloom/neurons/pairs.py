"""Adapters in a network: pairs of small tensors whose product is added to what a frozen layer answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.neurons.axes import Axes
from fedloom.neurons.wiring import Wiring


class Factor(NamedTuple):
    """One of the two tensors, and its axis of rank components."""

    tensor: Axes
    axis: int

    def of(self, values: Tensor) -> Tensor:
        """Its numbers in `values` [..., P] as a matrix [..., r, n] with a row for every component."""
        tensor, lead = self.tensor, values.shape[:-1]
        own = values[..., tensor.start : tensor.stop].reshape(*lead, *tensor.shape)
        return own.movedim(len(lead) + self.axis, len(lead)).flatten(len(lead) + 1)

    def put(self, values: Tensor, rows: Tensor) -> None:
        """Write a matrix [r, n] into its place in `values` [P]."""
        shape = list(self.tensor.shape)
        first = shape.pop(self.axis)
        own = rows.reshape(first, *shape).movedim(0, self.axis)
        values[self.tensor.start : self.tensor.stop] = own.reshape(-1)


class Pair(NamedTuple):
    """An adapter: A reads what the frozen layer reads, and B's answer is added to the layer's."""

    group: str  # of its rank components
    a: Factor  # [r, inputs]
    b: Factor  # [r, outputs]
    base: str  # the frozen weight

    @property
    def rank(self) -> int:
        """The number of components."""
        return self.a.tensor.shape[self.a.axis]


def pairs_in(
    wiring: Wiring,
    tensors: Sequence[Axes],
    lists: Sequence[tuple[int, ...]],
    widths: Mapping[str, int],
    base: Mapping[str, Tensor],
) -> tuple[Pair, ...]:
    """The adapters among the hidden groups, of these `widths` in order; no names are read.

    A group counts if exactly two tensors have it, as rows of A and columns of B, and A reads the same as a frozen layer
    to whose answer B's is added. An ordinary narrow layer is none.
    """
    found, start = [], 0
    frozen = {name: wiring.bound[name] for name in base if name in wiring.bound}
    for group, width in widths.items():
        span = range(start, start + width)
        start += width
        using = [
            (tensor, axis)
            for tensor in tensors
            for axis, which in enumerate(tensor.along)
            if which is not None and not set(span).isdisjoint(lists[which])
        ]
        if len(using) != 2 or any(lists[tensor.along[axis] or 0] != tuple(span) for tensor, axis in using):
            continue
        into = [Factor(tensor, axis) for tensor, axis in using if axis == tensor.output]
        out = [Factor(tensor, axis) for tensor, axis in using if axis != tensor.output]
        if len(into) != 1 or len(out) != 1:
            continue
        a, b = into[0], out[0]
        reads, adds = wiring.bound[a.tensor.name], wiring.bound[b.tensor.name]
        inputs = {axis: ids for axis, ids in reads.axes.items() if axis != reads.output}
        for name, bound in frozen.items():
            own = {axis: ids for axis, ids in bound.axes.items() if axis != bound.output}
            if (
                bound.weight
                and _equal(own, inputs)
                and _joined(wiring, adds.axes[adds.output], bound.axes[bound.output])
            ):
                found.append(Pair(group, a, b, name))
                break
    return tuple(found)


def _equal(one: Mapping[int, Tensor], other: Mapping[int, Tensor]) -> bool:
    """Whether two layers read the same neurons; those of a transposed weight lie along another axis."""
    return len(one) == len(other) and all(map(torch.equal, one.values(), other.values()))


def _joined(wiring: Wiring, one: Tensor, other: Tensor) -> bool:
    """Whether two layers' answers have been added, entry by entry."""
    return any(
        (torch.equal(a, one) and torch.equal(b, other)) or (torch.equal(a, other) and torch.equal(b, one))
        for a, b in wiring.edges
    )
