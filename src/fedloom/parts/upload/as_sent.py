"""Upload: the numbers that the client was sent."""

from dataclasses import dataclass

from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Upload
from fedloom.core.types import Setting, State, Task


@dataclass(frozen=True)
class AsSent(Upload):
    """The same part of the model that the client was sent."""

    @property
    def sends_what_came(self) -> bool:
        """The server knows the mask."""
        return True

    def __call__(
        self, setting: Setting, task: Task, state: State, first: Tensor, last: Tensor, chance: Chance
    ) -> Tensor | None:
        """Return the mask of the task."""
        return task.mask
