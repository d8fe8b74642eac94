"""The layout of a module as one vector: trained parameters first, then float buffers that training moves.

All other tensors are the module's base: frozen parameters, constants, whole numbers. They stay in the module, one set
for all clients; nothing copies, sends, averages or changes them.
"""

from collections.abc import Set
from copy import deepcopy
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedloom.errors import BadModel


class Layout(NamedTuple):
    """The places of a module's tensors in the flat vector, which its base is not part of."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    parameters: tuple[str, ...]  # the names that are trained, first in `names`
    aliases: tuple[tuple[str, str], ...] = ()  # other names of tied tensors, each with the one in `names`

    @property
    def sizes(self) -> list[int]:
        """The number of entries of each tensor."""
        return [prod(shape) for shape in self.shapes]

    @property
    def trained(self) -> int:
        """The number of entries that are trained; they come first in the vector."""
        return sum(self.sizes[: len(self.parameters)])

    @property
    def total(self) -> int:
        """P, the length of the vector."""
        return sum(self.sizes)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """The tensors as views of `flat` [..., P]; leading axes stay."""
        pieces, lead = flat.split_with_sizes(self.sizes, -1), flat.shape[:-1]
        return {name: piece.view(lead + shape) for name, shape, piece in zip(self.names, self.shapes, pieces)}

    def with_aliases(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """What belongs to each tensor, by all its names."""
        return tensors | {name: tensors[first] for name, first in self.aliases} if self.aliases else tensors

    def join(self, tensors: dict[str, Tensor], lead: int) -> Tensor:
        """The opposite of `split`; `lead` leading axes are kept."""
        return torch.cat([tensors[name].reshape(*tensors[name].shape[:lead], -1) for name in self.names], -1)


def layout_of(module: nn.Module, moving: Set[str] | None = None) -> Layout:
    """The layout of a module, whose trained parameters must all be float32 or all float64.

    Args:
        module: parameters with `requires_grad=False` belong to its base.
        moving: the names of the float buffers that training moves, such as running statistics; None: all of them.
    """
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not trained:
        kind = type(module).__name__
        if next(module.parameters(), None) is None:
            raise BadModel(f"{kind} has no parameters; a model needs at least one to train.")
        raise BadModel(f"every parameter of {kind} is frozen (requires_grad is False); train some.")
    kinds = {name: p.dtype for name, p in trained.items()}
    odd = [name for name, dtype in kinds.items() if dtype not in (torch.float32, torch.float64)]
    if odd or len(set(kinds.values())) > 1:
        name = odd[0] if odd else next(n for n, d in kinds.items() if d != next(iter(kinds.values())))
        raise BadModel(
            f"parameter '{name}' is {kinds[name]}; all parameters that are trained must be float32 (or all float64)."
        )
    buffers = {
        name: value
        for name, value in module.named_buffers()
        if value.is_floating_point() and (moving is None or name in moving)
    }
    tensors = {**trained, **buffers}
    first = {id(value): name for name, value in tensors.items()}
    every = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return Layout(
        names=tuple(tensors),
        shapes=tuple(tuple(t.shape) for t in tensors.values()),
        parameters=tuple(trained),
        aliases=tuple((name, first[id(v)]) for name, v in every if id(v) in first and name not in tensors),
    )


def base_of(module: nn.Module, layout: Layout) -> dict[str, Tensor]:
    """The module's tensors that the vector leaves out, but for the counters of norm layers."""
    counters = {f"{name}.num_batches_tracked".lstrip(".") for name, _ in module.named_modules()}
    inside = counters.union(layout.names)
    return {name: value.detach() for name, value in tensors_of(module).items() if name not in inside}


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by name; a tensor with several names has the first."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def copied(module: nn.Module) -> nn.Module:
    """A deep copy that shares the memory of frozen parameters, which nothing changes."""
    frozen = [p for p in module.parameters() if type(p) is nn.Parameter and not p.requires_grad]
    memo: dict[int, Any] = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in frozen}
    return deepcopy(module, memo)  # takes what it finds in the memo as it is


def flatten(module: nn.Module, layout: Layout) -> Tensor:
    """The numbers of a module that the layout names, as one vector [P] (a copy)."""
    tensors = tensors_of(module)
    with torch.no_grad():
        return layout.join({name: tensors[name].to(tensors[layout.names[0]].dtype) for name in layout.names}, 0).clone()


def load(module: nn.Module, layout: Layout, flat: Tensor) -> nn.Module:
    """Write a vector [P] into a module, whose base stays as it is, and return it."""
    tensors = tensors_of(module)
    with torch.no_grad():
        for name, value in layout.split(flat).items():
            tensors[name].copy_(value)
    return module
