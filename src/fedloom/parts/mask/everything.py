"""Mask: the whole model for every client."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Mask
from fedloom.core.types import Portion, Setting, State


@dataclass(frozen=True)
class Everything(Mask):
    """The whole model, whatever the share."""

    @property
    def sends_all(self) -> bool:
        """No client is sent less."""
        return True

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Return no mask."""
        return Portion(), memory
