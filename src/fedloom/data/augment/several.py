"""Several transforms as one, and functions of the user's own with their settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedloom.chance import absorb
from fedloom.core.goal import Transform
from fedloom.data.augment.mixing import name_of


def mixes(transform: Transform | None) -> bool:
    """Does the transform look at other examples of a client's batch? Then it gets real examples of one client."""
    return bool(getattr(transform, "mixes", False))


def shares(transform: Transform | None) -> bool:
    """Does the transform return targets as shares of classes [n, classes]?"""
    return bool(getattr(transform, "shares", False))


@dataclass(frozen=True)
class Several:
    """Transforms one after another; each draws with keys of its own, so that two equal ones differ."""

    transforms: tuple[Transform, ...]

    @property
    def mixes(self) -> bool:
        """Does any of them look at other examples of the batch?"""
        return any(mixes(one) for one in self.transforms)

    @property
    def shares(self) -> bool:
        """Does any of them return targets as shares of classes?"""
        return any(shares(one) for one in self.transforms)

    def __call__(self, x: Tensor, y: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Apply all of them."""
        for place, one in enumerate(self.transforms):
            x, y = one(x, y, absorb(keys, place))
        return x, y


@dataclass(frozen=True)
class Own:
    """A function `(x, y, keys, **settings) -> x, y` of the user's own."""

    function: Callable[..., tuple[Tensor, Tensor]]
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def mixes(self) -> bool:
        """Does the function look at other examples of the batch, as its attribute `mixes` says?"""
        return mixes(self.function)

    @property
    def shares(self) -> bool:
        """Does the function return targets as shares of classes, as its attribute `shares` says?"""
        return shares(self.function)

    def __call__(self, x: Tensor, y: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Call the function with its settings."""
        return self.function(x, y, keys, **self.settings)

    def __repr__(self) -> str:
        """The function by its name, without an address: runs are compared by this text."""
        return f"Own({', '.join([name_of(self.function), *[f'{k}={v!r}' for k, v in self.settings.items()]])})"


def transform_of(transforms: Sequence[Transform]) -> Transform | None:
    """The transforms as one; None if there are none."""
    if len(transforms) < 2:
        return next(iter(transforms), None)
    return Several(tuple(transforms))
