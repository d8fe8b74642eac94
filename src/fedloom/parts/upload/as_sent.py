"""What goes back? The numbers that came down."""

from dataclasses import dataclass

from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Upload
from fedloom.core.types import Setting, State, Task


@dataclass(frozen=True)
class AsSent(Upload):
    """The same part of the model that the client was sent."""

    def __call__(
        self, setting: Setting, task: Task, state: State, first: Tensor, last: Tensor, chance: Chance
    ) -> Tensor | None:
        """The task's own mask."""
        return task.mask
