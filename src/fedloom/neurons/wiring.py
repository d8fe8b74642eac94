"""What listening to a network records: neurons, which of them meet, and what they run along."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.neurons.ids import LOOSE, small


@dataclass
class Bound:
    """A named tensor: the neurons along its axes, and its use."""

    axes: dict[int, Tensor]
    output: int  # the axis of the neurons that own its entries
    weight: bool  # leads into its neurons and so counts in their scores
    positions: int = 0  # multiplications by each entry during the walk


class Attribute(NamedTuple):
    """An attribute of a layer that counts neurons; `part` is its place in a tuple, or None for a plain number."""

    layer: str
    name: str
    part: int | None


class Across(NamedTuple):
    """A call whose answer depends on several neurons at once, if they change along these axes."""

    name: str
    ids: Tensor
    axes: tuple[int, ...]
    norm: bool = False  # as the norms of residual streams do


class Product(NamedTuple):
    """A product of two activations: neurons along its answer, and floating-point operations of all of it."""

    ids: Tensor  # [n]
    flops: int


@dataclass
class Wiring:
    """Neurons, and all that has been recorded so far. What needs to know which neurons are one waits for the end."""

    count: int = 1  # ids of neurons that layers emit, and the fixed one
    loose: int = 0  # ids of entries of bare parameters
    edges: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # neurons that are one
    fixed: list[Tensor] = field(default_factory=list)  # neurons that are never cut
    aside: list[tuple[str, str, Tensor]] = field(default_factory=list)  # layer, why, neurons it mixes: never cut
    still: list[tuple[Tensor, int, str, str]] = field(default_factory=list)  # ids, axis; layer, why
    place: tuple[str, str] = "", ""  # the layer whose code runs, and the function
    folded: list[Tensor] = field(default_factory=list)  # ids that can be cut along one axis at most
    meets: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # bare parameters' ids, and ids that they meet
    opened: dict[str, Tensor] = field(default_factory=dict)  # layer -> its output neurons
    words: dict[str, str] = field(default_factory=dict)  # layer -> what its neurons are called
    bound: dict[str, Bound] = field(default_factory=dict)  # tensor -> its axes
    entries: dict[str, Tensor] = field(default_factory=dict)  # bare parameter -> the ids of its entries
    stuck: set[str] = field(default_factory=set)  # tensors that are used in a way without a rule
    attributes: dict[Attribute, Tensor] = field(default_factory=dict)  # attribute -> the entries it counts
    across: list[Across] = field(default_factory=list)
    divided: dict[str, tuple[int, Tensor]] = field(default_factory=dict)  # group norm -> number of groups, channels
    told: list[tuple[int, str, tuple[Tensor, ...]]] = field(default_factory=list)  # number, function, ids of its answer
    alike: list[tuple[str, ...]] = field(default_factory=list)  # layers that must keep equally many
    states: dict[str, Tensor] = field(default_factory=dict)  # recurrent layer whose states the code makes -> its units
    heads: list[Tensor] = field(default_factory=list)  # neurons that are heads
    products: list[Product] = field(default_factory=list)
    whole: dict[str, str] = field(default_factory=dict)  # layer whose code is not understood -> what of it, and why
    lost: list[str] = field(default_factory=list)  # layers whose neurons are not cut because of those

    def open(self, layer: str, width: int, word: str = "") -> Tensor:
        """Make neurons for a layer's outputs; a layer that is called again keeps its neurons."""
        if layer not in self.opened:
            self.opened[layer] = torch.arange(self.count, self.count + width)
            self.count += width
            if word:
                self.words[layer] = word
        return self.opened[layer]

    def entries_of(self, tensor: str, shape: torch.Size) -> Tensor:
        """The ids of a bare parameter's entries, one for each."""
        if tensor not in self.entries:
            first, size = LOOSE + self.loose, prod(shape)
            self.entries[tensor] = torch.arange(first, first + size).view(shape)
            self.loose += size
        return self.entries[tensor]

    def unite(self, a: Tensor, b: Tensor) -> None:
        """Unite neurons, entry by entry; ids are broadcast against each other."""
        a, b = torch.broadcast_tensors(small(a) if a.numel() else a, small(b) if b.numel() else b)
        if a.numel():
            self.edges.append((a.flatten(), b.flatten()))

    def merge(self, ids: Tensor, axes: list[int]) -> Tensor:
        """Make everything along these axes one neuron; the ids have size 1 along them then."""
        first = ids
        for axis in axes:
            first = first.narrow(axis, 0, 1)
        self.unite(ids, first)
        return first

    def fix(self, ids: Tensor) -> None:
        """Never cut these neurons."""
        if ids.numel():
            self.fixed.append(small(ids).flatten())

    def hold(self, ids: Tensor, axis: int) -> None:
        """Refuse to cut along this axis: the code works at places that it names, or with a constant of full size."""
        if ids.shape[axis] > 1 and ids.stride(axis):
            layer, name = self.place
            self.still.append((small(ids), axis % ids.dim(), layer, f"{name}: it tells places along neurons apart"))

    def bind(self, tensor: str, axes: Mapping[int, Tensor], output: int, weight: bool, positions: int) -> None:
        """Record the neurons along a named tensor's axes; a layer's second call unites its neurons with the first's."""
        known = self.bound.setdefault(tensor, Bound(dict(axes), output, weight))
        for axis, ids in axes.items():
            self.unite(known.axes.setdefault(axis, ids), ids)
        known.positions += positions
