"""What is a slot's contract? One abstract class per decision the server takes in a round.

Every part is pure: it is given its memory and facts, and returns its decision and its new memory. A part is a frozen
dataclass, so that it prints, compares and can be rebuilt elsewhere; a leaf is not subclassed further.
"""

from abc import ABC, abstractmethod

from torch import Tensor

from fedloom.chance import Chance
from fedloom.types import Cohort, Portion, Reply, Setting, State, Task


class ServerPart(ABC):  # noqa: B024  its subclasses below each add the one abstract call
    """A decision of the server's."""

    def init(self, setting: Setting, model: Tensor) -> State:
        """The memory before the first round."""
        return {}

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """Learn from the replies, before repair and aggregation."""
        return memory


class Select(ServerPart):
    """Who takes part."""

    @abstractmethod
    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """Choose this round's cohort."""


class Allocate(ServerPart):
    """How much each may use."""

    @abstractmethod
    def __call__(self, memory: State, setting: Setting, ids: Tensor, chance: Chance) -> tuple[Tensor, State]:
        """A share in (0, 1] for each of the cohort [C]."""


class Mask(ServerPart):
    """Which part of the model each is sent."""

    @abstractmethod
    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """A mask [C, P], and the neurons [C, K] if it is made of whole ones."""


class Upload(ABC):
    """What goes back; decided on the client."""

    @abstractmethod
    def __call__(
        self, setting: Setting, task: Task, state: State, first: Tensor, last: Tensor, chance: Chance
    ) -> Tensor | None:
        """A mask [C, P] from the weights before and after training, or None for everything."""


class Repair(ServerPart):
    """What stands in for what is missing."""

    @abstractmethod
    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Reply, State]:
        """The replies without gaps."""


class Aggregate(ServerPart):
    """How replies become the next model."""

    @abstractmethod
    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """The new model [P]."""
