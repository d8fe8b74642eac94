"""Upload: what is in a mask that the client keeps."""

from dataclasses import dataclass

from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Upload
from fedloom.core.types import Setting, State, Task


@dataclass(frozen=True)
class OwnMask(Upload):
    """The numbers in the `mask` of the client's state, which is sent along."""

    def __call__(
        self, setting: Setting, task: Task, state: State, first: Tensor, last: Tensor, chance: Chance
    ) -> Tensor | None:
        """Return the mask as it is after training; everything where everything was sent."""
        return None if task.mask is None else state["mask"]
