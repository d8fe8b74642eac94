"""Which neurons are one and the same? What a walk through a network gathers before it becomes a map."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedloom.neurons.ids import FIXED


@dataclass
class Bound:
    """What is known of one named tensor: the neurons along its axes, and how it is used."""

    axes: dict[int, Tensor]
    output: int  # the axis of the neurons that own its entries
    weight: bool  # leads into its neurons, so it counts in their scores
    positions: int = 0  # how often the walk multiplies by each entry


class Attribute(NamedTuple):
    """An attribute of a layer that counts neurons; `part` is its place in a tuple, or None for a plain number."""

    layer: str
    name: str
    part: int | None


@dataclass
class Wiring:
    """Neurons and what is known of them so far."""

    parent: list[int] = field(default_factory=lambda: [FIXED])  # a forest: neurons with one root are one
    opened: dict[str, Tensor] = field(default_factory=dict)  # layer -> its output neurons
    bound: dict[str, Bound] = field(default_factory=dict)  # tensor -> its axes
    attributes: dict[Attribute, Tensor] = field(default_factory=dict)  # -> the entries it counts
    across: dict[str, Tensor] = field(default_factory=dict)  # layer with statistics over several neurons -> those
    divided: dict[str, tuple[int, Tensor]] = field(default_factory=dict)  # group norm -> number of groups, channels
    written: dict[str, tuple[int, Tensor]] = field(default_factory=dict)  # step -> a literal size, entries it counts

    def open(self, layer: str, width: int) -> Tensor:
        """New neurons for a layer's outputs; a layer that is called again keeps those it has."""
        if layer not in self.opened:
            first = len(self.parent)
            self.parent.extend(range(first, first + width))
            self.opened[layer] = torch.arange(first, first + width)
        return self.opened[layer]

    def find(self, neuron: int) -> int:
        """The root of a neuron: the smallest id it was united with."""
        while self.parent[neuron] != neuron:
            self.parent[neuron] = self.parent[self.parent[neuron]]
            neuron = self.parent[neuron]
        return neuron

    def unite(self, a: Tensor, b: Tensor) -> None:
        """Neurons that meet entry by entry are one from here on."""
        for one, other in set(zip(a.flatten().tolist(), b.flatten().tolist())):
            low, high = sorted((self.find(one), self.find(other)))
            self.parent[high] = low

    def bind(self, tensor: str, axes: Mapping[int, Tensor], output: int, weight: bool, often: int) -> None:
        """These neurons run along these axes of a named tensor; those of a layer's second call meet the first's."""
        known = self.bound.setdefault(tensor, Bound(dict(axes), output, weight))
        for axis, ids in axes.items():
            self.unite(known.axes[axis], ids)
        known.positions += often


@dataclass(frozen=True)
class Call:
    """One step of the forward pass: what runs, on which neurons, and the shape of what comes out."""

    wiring: Wiring
    name: str  # the layer's, or that of the graph's step for a function
    layer: Any  # None for a function
    kind: Any  # the type of the layer, the function, or the method's name
    run: Callable[..., Any]
    args: tuple[Any, ...]  # tensors are stood for by their ids
    kwargs: dict[str, Any]
    written: tuple[Any, ...]  # the arguments as the code has them: a number here is a literal
    shape: torch.Size  # of the result; of the first, if several

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """An argument by place or by name."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)

    def operands(self) -> Iterator[Tensor]:
        """All tensors among the arguments."""
        return (x for x in (*self.args, *self.kwargs.values()) if isinstance(x, Tensor))

    def open(self, width: int) -> Tensor:
        """The layer's own neurons."""
        return self.wiring.open(self.name or type(self.layer).__name__.lower(), width)

    def bind(self, tensor: str, axes: dict[int, Tensor], output: int = 0, weight: bool = False, often: int = 0) -> None:
        """These neurons run along these axes of the layer's tensor, if it has that one."""
        if isinstance(getattr(self.layer, tensor, None), Tensor):
            self.wiring.bind(f"{self.name}.{tensor}".lstrip("."), axes, output, weight, often)

    def resize(self, attribute: str, ids: Tensor, part: int | None = None) -> None:
        """An attribute of the layer is the number of these entries that are kept."""
        self.wiring.attributes[Attribute(self.name, attribute, part)] = ids
