"""Changes of training examples when a batch is gathered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedloom.core.goal import Goal, Transform

TRANSFORMS: dict[str, Callable[..., Transform]] = {}


@dataclass(frozen=True)
class Own:
    """A function of the user's own."""

    function: Callable[..., Any]
    settings: tuple[tuple[str, Any], ...] = ()

    def __call__(self, x: Tensor, y: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Call it."""
        x, y = self.function(x, y, keys, **dict(self.settings))
        return x, y


def every_transform(named: Sequence[Transform], given: Transform | None, outputs: int) -> Transform | None:
    """All of them."""
    return given


def check_transform(transform: Transform, x: Tensor, y: Tensor, goal: Goal) -> None:
    """Refuse what cannot be used."""
