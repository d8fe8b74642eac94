"""Neurons united during a walk through a network, and what the walk records for the map."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedloom.neurons.ids import FIXED


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


@dataclass
class Wiring:
    """Neurons, and all that the walk has recorded so far."""

    parent: list[int] = field(default_factory=lambda: [FIXED])  # a union-find forest: neurons with one root are one
    opened: dict[str, Tensor] = field(default_factory=dict)  # layer -> its output neurons
    bound: dict[str, Bound] = field(default_factory=dict)  # tensor -> its axes
    attributes: dict[Attribute, Tensor] = field(default_factory=dict)  # attribute -> the entries it counts
    across: dict[str, Tensor] = field(default_factory=dict)  # layer with statistics over several neurons -> the neurons
    divided: dict[str, tuple[int, Tensor]] = field(default_factory=dict)  # group norm -> number of groups, channels
    written: dict[str, tuple[int, Tensor]] = field(default_factory=dict)  # step -> a literal size, entries it counts

    def open(self, layer: str, width: int) -> Tensor:
        """Make neurons for a layer's outputs; a layer that is called again keeps its neurons."""
        if layer not in self.opened:
            first = len(self.parent)
            self.parent.extend(range(first, first + width))
            self.opened[layer] = torch.arange(first, first + width)
        return self.opened[layer]

    def find(self, neuron: int) -> int:
        """The root of a neuron: the smallest id among those united with it."""
        while self.parent[neuron] != neuron:
            self.parent[neuron] = self.parent[self.parent[neuron]]
            neuron = self.parent[neuron]
        return neuron

    def unite(self, a: Tensor, b: Tensor) -> None:
        """Unite neurons, entry by entry."""
        for one, other in set(zip(a.flatten().tolist(), b.flatten().tolist())):
            low, high = sorted((self.find(one), self.find(other)))
            self.parent[high] = low

    def bind(self, tensor: str, axes: Mapping[int, Tensor], output: int, weight: bool, positions: int) -> None:
        """Record the neurons along a named tensor's axes; a layer's second call unites its neurons with the first's."""
        known = self.bound.setdefault(tensor, Bound(dict(axes), output, weight))
        for axis, ids in axes.items():
            self.unite(known.axes[axis], ids)
        known.positions += positions


@dataclass(frozen=True)
class Call:
    """One step of the forward pass: what runs, on which neurons, and the shape of the result."""

    wiring: Wiring
    name: str  # of the layer, or for a function of the step
    layer: Any  # None for a function
    kind: Any  # the type of the layer, the function, or the method's name
    run: Callable[..., Any]
    args: tuple[Any, ...]  # with ids in place of tensors
    kwargs: dict[str, Any]
    written: tuple[Any, ...]  # the arguments as the code gives them: a number here is a literal
    shape: torch.Size  # of the result, or of the first of several

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """An argument, by place or by name."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)

    def operands(self) -> Iterator[Tensor]:
        """All tensors among the arguments."""
        return (x for x in (*self.args, *self.kwargs.values()) if isinstance(x, Tensor))

    def open(self, width: int) -> Tensor:
        """Open the layer's neurons."""
        return self.wiring.open(self.name or type(self.layer).__name__.lower(), width)

    def bind(
        self, tensor: str, axes: dict[int, Tensor], output: int = 0, weight: bool = False, positions: int = 0
    ) -> None:
        """Record the neurons along the axes of the layer's tensor, if it has that tensor."""
        if isinstance(getattr(self.layer, tensor, None), Tensor):
            self.wiring.bind(f"{self.name}.{tensor}".lstrip("."), axes, output, weight, positions)

    def resize(self, attribute: str, ids: Tensor, part: int | None = None) -> None:
        """Record that an attribute of the layer counts these entries."""
        self.wiring.attributes[Attribute(self.name, attribute, part)] = ids
