"""Repair: missing replies stay missing."""

from dataclasses import dataclass

from torch import Tensor

from fedloom.core.part import Repair
from fedloom.core.types import Reply, Setting, State


@dataclass(frozen=True)
class Nothing(Repair):
    """The aggregate is over the replies that arrived."""

    @property
    def stands_in(self) -> bool:
        """Every reply counts once."""
        return False

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Reply, State]:
        """Return the replies unchanged."""
        return reply, memory
