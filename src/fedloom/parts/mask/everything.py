"""Which part is each client sent? All of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Mask
from fedloom.core.types import Portion, Setting, State

if TYPE_CHECKING:
    from fedloom.method import Method


@dataclass(frozen=True)
class Everything(Mask):
    """The whole model, whatever the share."""

    def clash(self, method: Method) -> str | None:
        """Every rule can train the whole."""
        return None

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """No mask at all."""
        return Portion(), memory
