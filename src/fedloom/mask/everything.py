"""Which part is each client sent? All of it."""

from dataclasses import dataclass

from torch import Tensor

from fedloom.chance import Chance
from fedloom.part import Mask
from fedloom.types import Portion, Setting, State


@dataclass(frozen=True)
class Everything(Mask):
    """The whole model, whatever the share."""

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """No mask at all."""
        return Portion(), memory
