"""One call of the forward pass, as a rule sees it."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.neurons.ids import along, emitted, loose, moving, settled, small
from fedloom.neurons.wiring import Across, Attribute, Product, Wiring

Rule = Callable[["Call"], Any]  # gives the ids of the answer: of one tensor, or of several in order


class Call:
    """A function, method or layer that has run: its arguments and answer, and the neurons of these.

    A rule asks for the neurons of arguments with `ids`, records with `open`, `bind`, `unite` and `hold` what the call
    does with them, and returns the ids of the answer.
    """

    def __init__(
        self,
        wiring: Wiring,
        listener: Any,
        function: Callable[..., Any],
        name: str,
        args: Any,
        kwargs: Any,
        answer: Any,
    ) -> None:
        self.wiring, self.function, self.name = wiring, function, name
        self.args: tuple[Any, ...] = args
        self.kwargs: dict[str, Any] = {"dim" if key == "axis" else key: value for key, value in kwargs.items()}
        self.answer = answer
        self.layer, self.module = listener.place
        self._listener = listener

    @property
    def shape(self) -> torch.Size:
        """Of the answer, or of the first of several."""
        return tensors_in(self.answer)[0].shape

    @property
    def where(self) -> str:
        """The layer's name; for a function that a layer of own code calls, with the function's."""
        own = not type(self.module).__module__.startswith("torch.nn")
        return f"{self.layer} ({self.name})".strip() if own else self.layer

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """An argument, by place or by name."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)

    def operands(self) -> Iterator[Tensor]:
        """All tensors among the arguments."""
        return iter(tensors_in((self.args, self.kwargs)))

    def ids(self, tensor: Tensor) -> Tensor:
        """The neurons that emit the entries of an argument; entries of bare parameters have ids of their own."""
        found: Tensor = self._listener.ids_of(tensor)
        return found

    def again(self, tensor: Tensor | None = None) -> Any:
        """Run the function on the first argument's ids (or on these) in place of the first argument."""
        first = self.ids(self.args[0]) if tensor is None else tensor
        return self.function(first.contiguous(), *hosted(self.args[1:]), **hosted(self.kwargs))

    def name_of(self, tensor: Any) -> str | None:
        """The name of a parameter or buffer; None for any other tensor."""
        found: str | None = self._listener.names.get(id(tensor))
        return found

    def transposed(self, tensor: Any) -> Tensor | None:
        """The parameter whose transpose this tensor is, if it is one."""
        found: Tensor | None = self._listener.transposes.get(id(tensor))
        return found

    def made_in(self, tensor: Tensor) -> str:
        """The layer whose code made a tensor."""
        found: str = self._listener.made_in(tensor)
        return found

    def owner(self, tensor: Any) -> tuple[str, nn.Module]:
        """The name and module of a parameter's layer; of the one that runs, where it is one of several."""
        found: tuple[str, nn.Module] = self._listener.owner(tensor, self.layer)
        return found

    def open(self, width: int, weight: Any = None, word: str = "", suffix: str = "") -> Tensor:
        """Open neurons for what a layer emits, known by its weight; a layer that is called again keeps its neurons."""
        layer, module = (self.layer, self.module) if weight is None else self.owner(weight)
        name = layer or type(module).__name__.lower()
        if weight is not None and (full := self.name_of(weight)) and not full.endswith("weight") and not suffix:
            name = full  # a parameter that stands alone
        if suffix:
            name = f"{name}.{suffix}"
        return self.wiring.open(name, width, word)

    def bind(
        self, tensor: Any, axes: dict[int, Tensor], output: int = 0, weight: bool = False, positions: int = 0
    ) -> None:
        """Record the neurons along the axes of a parameter or buffer; does nothing for None."""
        if tensor is not None and (name := self.name_of(tensor)) is not None:
            self.wiring.bind(name, axes, output, weight, positions)
        elif isinstance(tensor, Tensor):
            self.meet(self.ids(tensor), axes)

    def reads(self, tensor: Tensor, axis: int) -> Tensor:
        """The neurons along the axis that a layer reads; those along other axes are never cut."""
        ids = self.ids(tensor)
        if loose(ids) and not emitted(ids):  # a layer on constants, such as a table of distances
            self.wiring.fix(ids)
            return torch.zeros(ids.shape[axis], dtype=torch.int64)
        if any(place != axis % ids.dim() for place in moving(ids)):
            self.wiring.aside.append((self.layer, f"{self.name}: it works along another axis than neurons", small(ids)))
            return torch.zeros(ids.shape[axis], dtype=torch.int64)
        return along(ids, axis)

    def meet(self, own: Tensor, axes: dict[int, Tensor]) -> None:
        """Unite what is computed from bare parameters with the neurons along its axes, or fix these."""
        for axis, ids in axes.items():
            view = [1] * own.dim()
            view[axis] = -1
            if loose(own) or emitted(own):
                self.wiring.unite(own, ids.view(view))
            else:
                self.wiring.fix(ids)

    def resize(self, owner: tuple[str, nn.Module], attribute: str, ids: Tensor, part: int | None = None) -> None:
        """Record that an attribute of a layer counts these entries, if it does."""
        layer, module = owner
        size = getattr(module, attribute, None)
        if part is not None and isinstance(size, tuple | list) and -len(size) <= part < len(size):
            size = size[part]
        if isinstance(size, int) and size == len(ids):
            self.wiring.attributes[Attribute(layer, attribute, part)] = ids

    def across(self, ids: Tensor, axes: tuple[int, ...], norm: bool = False) -> None:
        """Record that the answer depends on all neurons along these axes at once."""
        self.wiring.across.append(Across(self.where, settled(ids), tuple(a % ids.dim() for a in axes), norm))

    def product(self, ids: Tensor, flops: int) -> None:
        """Record a product of activations, and its `flops` for all of these neurons together."""
        self.wiring.products.append(Product(ids, flops))

    def has_neurons(self, tensor: Any) -> bool:
        """Whether an argument is a tensor with neurons of a layer."""
        return isinstance(tensor, Tensor) and emitted(self.ids(tensor))


def hosted(value: Any) -> Any:
    """A nested value with its tensors on the host, where ids are."""
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: hosted(part) for key, part in value.items()}
    return type(value)(map(hosted, value)) if type(value) in (list, tuple) else value


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of a nested value, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in tensors_in(part)]
    return []
