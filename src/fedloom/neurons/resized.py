"""A network's own code run with fewer neurons: calls that are told sizes are told those of what was kept.

Code writes sizes down: `view(batch, places, 3, self.heads, width // self.heads)`. In a network of kept neurons these
are wrong. The map knows which call is told which neurons (`told.py`), so a run inside `resized` corrects them. No graph
is made, and the network's tensors are the caller's: it runs under `functional_call`, `vmap` and autograd alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedloom.errors import BadModel
from fedloom.neurons.heads import attention
from fedloom.neurons.states import CELLS, LAYERS, begun, unchecked
from fedloom.neurons.told import told_name

if TYPE_CHECKING:
    from fedloom.neurons.map import NeuronMap
    from fedloom.neurons.wiring import Attribute

NORMS = frozenset((F.layer_norm, F.rms_norm, torch.layer_norm, torch.rms_norm))


class Kept(NamedTuple):
    """The entries of one axis of an answer."""

    axis: int
    here: int  # that are kept
    whole: int  # of the whole network


class Sizes(NamedTuple):
    """What a network of kept neurons is told instead of the whole network's sizes; made by `sizes_of`."""

    calls: dict[int, tuple[str, tuple[tuple[Kept, ...], ...]]]  # by number: the function, and its answers' axes
    attributes: tuple[tuple[Attribute, int], ...]  # of layers, and what they count
    states: tuple[str, ...] = ()  # recurrent layers whose first states the code makes

    @property
    def last(self) -> int:
        """The number of calls that a run makes at least."""
        return max(self.calls, default=-1) + 1


READ = frozenset(
    ("hidden_size", "input_size", "groups", "num_groups", "num_features")
)  # attributes that layers read in a run


def sizes_of(map: NeuronMap, counts: Sequence[int]) -> Sizes:
    """The sizes of a sub-model that keeps so many entries of each of the map's lists.

    Of the attributes only those are set that layers cannot run without: what code computes from others is the whole
    network's, and calls are told the rest.
    """
    return Sizes(
        {
            told.number: (
                told.function,
                tuple(tuple(Kept(axis, counts[n], len(map.lists[n])) for axis, n in axes) for axes in told.axes),
            )
            for told in map.told
        },
        tuple((attribute, counts[which]) for attribute, which in map.attributes if attribute.name in READ),
        map.states,
    )


@contextmanager
def resized(module: nn.Module, sizes: Sizes | None) -> Iterator[Resized | None]:
    """Run a module's code on tensors of kept neurons: enter it around the module's call alone. None: on all neurons."""
    if sizes is None:
        yield None
        return
    before = [(module.get_submodule(a.layer), a.name, getattr(module.get_submodule(a.layer), a.name))
              for a, _ in sizes.attributes]  # fmt: skip
    mode = Resized(sizes)
    try:
        set_attributes(module, sizes.attributes)
        with unchecked(module, sizes.states), mode:
            yield mode
    finally:
        for layer, name, value in reversed(before):
            setattr(layer, name, value)
    if mode.met < sizes.last:
        raise BadModel(
            f"the network was told sizes {mode.met} times and not {sizes.last} times or more, as when its neurons were "
            "found: its code took another branch. Decide by settings, not by values, so that it can be cut."
        )


def set_attributes(module: nn.Module, attributes: Iterable[tuple[Attribute, int]]) -> None:
    """Set the attributes of layers that count neurons."""
    for (layer, name, part), size in attributes:
        owner = module.get_submodule(layer)
        if part is not None:
            several = list(getattr(owner, name))
            several[part] = size
        setattr(owner, name, size if part is None else tuple(several))


class Resized(TorchFunctionMode):
    """Corrects the sizes in the calls of one pass through a network."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes, self.met = sizes, 0

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Make one call; what it calls itself is not met again."""
        kwargs = kwargs or {}
        if (name := told_name(func, args)) is not None:
            number, self.met = self.met, self.met + 1
            if number in self.sizes.calls:
                return self._told(number, name, func, args, kwargs)
        elif func is F.multi_head_attention_forward:
            return attention(*args, **kwargs)
        elif func in NORMS:
            x, shape, rest = args[0], args[1] if len(args) > 1 else kwargs.pop("normalized_shape"), args[2:]
            return func(x, tuple(x.shape[-len(shape) :]), *rest, **kwargs)
        elif self.sizes.states and (name := getattr(func, "__name__", "")) in LAYERS | CELLS:
            args = begun(name, args)
        return func(*args, **kwargs)

    def _told(self, number: int, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call that is told how many neurons there are."""
        expected, axes = self.sizes.calls[number]
        if name != expected:
            raise BadModel(
                f"the network's call number {number} that is told sizes is '{name}', and was '{expected}' when its "
                "neurons were found: its code took another branch. Decide by settings, not by values, so that it can "
                "be cut."
            )
        return CALLS[name](func, axes, *args, **kwargs)


Axes = tuple[tuple[Kept, ...], ...]


def _sized(func: Any, axes: Axes, x: Tensor, *sizes: Any, **kwargs: Any) -> Tensor:
    """A reshape to sizes, as one argument or several."""
    given = sizes or tuple(kwargs.values())
    if isinstance(given[0], torch.dtype):
        return func(x, *sizes, **kwargs)  # type: ignore[no-any-return]
    asked = list(given[0] if isinstance(given[0], list | tuple) else given)
    exact = list(asked)
    for axis, count, _ in axes[0]:
        exact[axis] = count if asked[axis] != -1 else -1
    if -1 not in exact and torch.Size(exact).numel() != x.numel() and func.__name__ in ("view", "reshape"):
        for axis, count, whole in axes[0]:  # an axis that neurons share with the batch, of which a run has its own
            exact[axis] = asked[axis] * count // whole
    return func(x, tuple(exact))  # type: ignore[no-any-return]


def _unflattened(func: Any, axes: Axes, x: Tensor, dim: int, sizes: Any) -> Tensor:
    """One axis becomes several."""
    own, first = list(sizes), dim % x.dim()
    for axis, count, _ in axes[0]:
        if first <= axis < first + len(own) and own[axis - first] != -1:
            own[axis - first] = count
    return func(x, dim, tuple(own))  # type: ignore[no-any-return]


def _taken_apart(func: Any, axes: Axes, x: Tensor, told: Any = None, dim: int = 0, **kwargs: Any) -> Any:
    """An axis is cut into pieces; pieces without neurons keep the size that they were told."""
    told = next(iter(kwargs.values())) if told is None else told
    kept = [next((k.here for k in piece if k.axis == dim % x.dim()), None) for piece in axes]
    if all(count is None for count in kept):
        return func(x, told, dim)
    fixed = list(told) if isinstance(told, list | tuple) else [told] * len(kept)
    return x.split([own if count is None else count for count, own in zip(kept, fixed)], dim)


CALLS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("view", "reshape", "expand", "broadcast_to"), _sized),
    "unflatten": _unflattened,
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "tensor_split"), _taken_apart),
}
