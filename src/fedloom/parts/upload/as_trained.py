"""What goes back? What the client trained."""

from dataclasses import dataclass

from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Upload
from fedloom.core.types import Setting, State, Task


@dataclass(frozen=True)
class AsTrained(Upload):
    """The part that the client itself chose to train; which part it is travels along."""

    def __call__(
        self, setting: Setting, task: Task, state: State, first: Tensor, last: Tensor, chance: Chance
    ) -> Tensor | None:
        """The task's mask as the client narrowed it."""
        return task.mask
