"""Upload: the numbers that the client chose to train."""

from dataclasses import dataclass

from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Upload
from fedloom.core.types import Setting, State, Task


@dataclass(frozen=True)
class AsTrained(Upload):
    """The part that the client itself chose to train; the mask is sent along."""

    def __call__(
        self, setting: Setting, task: Task, state: State, first: Tensor, last: Tensor, chance: Chance
    ) -> Tensor | None:
        """Return the mask of the task as the client narrowed it."""
        return task.mask
