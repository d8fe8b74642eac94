"""Transforms that look at a client's whole batch: mixup, and functions that draw from torch's own generator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedloom.data.augment.draws import beta_table, looked_up, words
from fedloom.errors import BadExperiment

_PARTNER, _SHARE = 5, 6  # purposes of random numbers
_generator = Lock()  # torch has one generator for all threads


@dataclass(frozen=True)
class Mixup:
    """Mix each example with another one of the client's batch, and their targets (Zhang et al., ICLR 2018).

    Targets become shares [n, classes]. Each example has its own share, from Beta(alpha, alpha); partners are a random
    cycle through the batch, so that nobody is its own partner in a batch of two or more.
    """

    mixes: ClassVar[bool] = True
    shares: ClassVar[bool] = True

    classes: int
    alpha: float = 0.2

    def __post_init__(self) -> None:
        if self.classes < 1:
            raise BadExperiment(f"classes of mixup is {self.classes}; expected how many classes the data has.")
        if not 0 < self.alpha < math.inf:
            raise BadExperiment(f"alpha of mixup is {self.alpha}; expected a number above 0, such as 0.2.")

    def __call__(self, x: Tensor, y: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Mix examples and targets."""
        if not x.is_floating_point():
            raise BadExperiment(f"mixup needs examples of floating-point numbers; examples are {x.dtype}.")
        order = words(keys, _PARTNER, 1)[:, 0].argsort()
        partner = torch.empty_like(order).index_copy_(0, order, order.roll(-1))
        share = looked_up(keys, _SHARE, 1, beta_table(self.alpha, x.device))[:, 0]
        own = share.to(x.dtype).view(-1, *[1] * (x.dim() - 1))
        mixed = own * x + (1 - own) * x.index_select(0, partner)
        given = y if y.is_floating_point() else self._shares(y)
        return mixed, share[:, None] * given + (1 - share[:, None]) * given.index_select(0, partner)

    def _shares(self, y: Tensor) -> Tensor:
        """Classes [n] as shares [n, classes]."""
        if y.dim() != 1:
            raise BadExperiment(f"mixup needs one class for each example; targets have shape {tuple(y.shape[1:])}.")
        empty = torch.zeros(len(y), self.classes, device=y.device)
        return empty.scatter_(1, y[:, None], 1.0)


@dataclass(frozen=True)
class Seeded:
    """A function that draws from torch's global generator, such as torchvision's transforms.

    It is called per client and step on the client's real examples, as `function(x)`, or as `function(x, y) -> x, y`
    with `both`. The generator is seeded from the first example's key before the call and put back afterwards: runs
    repeat, whatever the engine and the chunks. Numbers on a CPU and a GPU are different ones.
    """

    mixes: ClassVar[bool] = True

    function: Callable[..., Any]
    both: bool = False

    def __call__(self, x: Tensor, y: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Call the function with a seeded generator."""
        if not len(x):
            return x, y
        seed, on_gpu = int(keys[0]), x.device.type == "cuda"
        with _generator, torch.random.fork_rng(devices=[x.device] if on_gpu else []):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed all GPUs for good
            if on_gpu:
                with torch.cuda.device(x.device):
                    torch.cuda.manual_seed(seed)
            if self.both:
                x, y = self.function(x, y)
            else:
                x = self.function(x)
        return x, y

    def __repr__(self) -> str:
        """The function by its name, without an address: runs are compared by this text."""
        return f"Seeded({name_of(self.function)}{', both=True' if self.both else ''})"


def name_of(function: Callable[..., Any]) -> str:
    """A function's name with its module; an object's own text."""
    name = getattr(function, "__qualname__", None)
    return repr(function) if name is None else f"{function.__module__}.{name}"
