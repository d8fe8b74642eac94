"""One call of a random function, as a law in `laws.py` or `random_tensors.py` answers it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from fedloom.chance import absorb, uniform
from fedloom.errors import BadModel


class Draw(NamedTuple):
    """One call of a random function."""

    fresh: Callable[[str], Tensor]  # the key of one more call
    function: Any
    name: str

    def keys(self, shape: torch.Size | tuple[int, ...], device: torch.device) -> Tensor:
        """A key for every place of a tensor; several clients' examples lie one after another."""
        key = self.fresh(self.name)
        if key.dim() == 0:
            return absorb(key, torch.arange(prod(shape), device=device).view(shape))
        return absorb(key[:, None], torch.arange(prod(shape) // len(key), device=device)).view(shape)

    def uniform(self, like: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
        """Numbers in [0, 1) for every place of a tensor, or of one of another shape on its device."""
        return uniform(self.keys(like.shape if shape is None else shape, like.device))

    def dropped(self, x: Tensor, p: float, shape: tuple[int, ...] | None = None) -> Tensor:
        """Dropout: 0 with probability p, else divided by 1 - p."""
        kept = (self.uniform(x, shape) >= p).to(x.dtype)
        return x * (kept / (1 - p) if p < 1 else kept)


Law = Callable[..., Any]  # (draw, the function's own arguments) -> its answer; None: it draws nothing


def batched(x: Tensor) -> bool:
    """Whether the tensor is one of vmap, for several clients."""
    inner = x
    while torch._C._functorch.is_gradtrackingtensor(inner):
        inner = torch._C._functorch.get_unwrapped(inner)
    return bool(torch._C._functorch.is_batchedtensor(inner))


def no_generator(draw: Draw, generator: Any) -> None:
    """Refuse a stream of the network's own."""
    if generator is not None:
        raise BadModel(
            f"the network calls torch.{draw.name} with a generator of its own, a stream that no seed of the run "
            "repeats; leave generator out, so that the numbers follow from the run's seed."
        )


def refused(draw: Draw, *_: Any, **__: Any) -> NoReturn:
    """A law that is not written here."""
    raise BadModel(
        f"the network calls torch.{draw.name} in training, whose numbers no seed of the run repeats; draw by "
        "torch.rand, torch.randn, torch.randint, torch.bernoulli or dropout instead."
    )
