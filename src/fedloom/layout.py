"""The layout of a module as one vector: trained parameters first, then frozen ones and running statistics."""

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedloom.errors import BadModel


class Layout(NamedTuple):
    """The places of a module's tensors in the flat vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    parameters: tuple[str, ...]  # the names that are trained, first in `names`

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

    def join(self, tensors: dict[str, Tensor], lead: int) -> Tensor:
        """The opposite of `split`; `lead` leading axes are kept."""
        return torch.cat([tensors[name].reshape(*tensors[name].shape[:lead], -1) for name in self.names], -1)


def layout_of(module: nn.Module) -> Layout:
    """The layout of a module, whose parameters must all be float32 or all float64."""
    parameters = dict(module.named_parameters())
    if not parameters:
        raise BadModel(f"{type(module).__name__} has no parameters; a model needs at least one to train.")
    kinds = {name: p.dtype for name, p in parameters.items()}
    odd = [name for name, dtype in kinds.items() if dtype not in (torch.float32, torch.float64)]
    if odd or len(set(kinds.values())) > 1:
        name = odd[0] if odd else next(n for n, d in kinds.items() if d != next(iter(kinds.values())))
        raise BadModel(f"parameter '{name}' is {kinds[name]}; all parameters must be float32 (or all float64).")
    trained = {name: p for name, p in parameters.items() if p.requires_grad}
    if not trained:
        raise BadModel(f"every parameter of {type(module).__name__} is frozen (requires_grad is False); train some.")
    buffers = {name: b for name, b in module.named_buffers() if b.is_floating_point()}
    tensors = {**trained, **parameters, **buffers}
    return Layout(
        names=tuple(tensors),
        shapes=tuple(tuple(t.shape) for t in tensors.values()),
        parameters=tuple(trained),
    )


def flatten(module: nn.Module, layout: Layout) -> Tensor:
    """A module's numbers as one vector [P] (a copy)."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with torch.no_grad():
        return layout.join({name: tensors[name].to(tensors[layout.names[0]].dtype) for name in layout.names}, 0).clone()


def load(module: nn.Module, layout: Layout, flat: Tensor) -> nn.Module:
    """Write a vector [P] into a module and return it."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with torch.no_grad():
        for name, value in layout.split(flat).items():
            tensors[name].copy_(value)
    return module
