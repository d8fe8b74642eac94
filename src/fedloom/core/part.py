"""What is a slot's contract? One abstract class per decision the server takes in a round.

Every part is pure: it is given its memory and facts, and returns its decision and its new memory. A part is a frozen
dataclass, so that it prints, compares and can be rebuilt elsewhere; a leaf is not subclassed further.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.types import Cohort, Portion, Reply, Setting, State, Task

if TYPE_CHECKING:
    from fedloom.method import Method


class Part(ABC):  # noqa: B024  its subclasses below each add the one abstract call
    """What fills a slot of a method."""

    def clash(self, method: Method) -> str | None:
        """Why this part cannot work in that method; None: it can."""
        return None


class ServerPart(Part):
    """A decision of the server's."""

    def init(self, setting: Setting, model: Tensor) -> State:
        """The memory before the first round."""
        return {}

    def resume(self, setting: Setting, model: Tensor, saved: State) -> State:
        """The memory of a run that goes on: copies, where they belong, of what `saved` has on the host."""
        return {name: value.to(model.device, copy=True) for name, value in saved.items()}

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """Learn from the replies, before repair and aggregation."""
        return memory

    @property
    def learns(self) -> bool:
        """Do its decisions follow from what single replies said? Then they tell of them."""
        return type(self).observe is not ServerPart.observe

    def record(self, memory: State) -> State:
        """What is worth keeping of this round: single numbers become columns, of larger tensors the last stays."""
        return {}

    def note(self, setting: Setting) -> str | None:
        """What should be known before a run begins, such as what the memory will weigh."""
        return None

    def outcome(self, setting: Setting, rounds: int) -> dict[str, float]:
        """What is to be said of a finished run of so many rounds, such as the privacy it has spent."""
        return {}


class NobodyLeft(Exception):
    """No client will ever take part again: the run is over."""


class Select(ServerPart):
    """Who takes part."""

    @abstractmethod
    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """Choose this round's cohort, at least one client; `NobodyLeft` if there is none and never will be."""


class Allocate(ServerPart):
    """How much each may use."""

    @property
    def steady(self) -> bool:
        """Has a client the same share in every round?"""
        return False

    @abstractmethod
    def __call__(self, memory: State, setting: Setting, ids: Tensor, chance: Chance) -> tuple[Tensor, State]:
        """A share in (0, 1] for each of the cohort [C]."""


class Mask(ServerPart):
    """Which part of the model each is sent."""

    @property
    def rows(self) -> bool:
        """Are masks made of whole rows, all that leads into a neuron? Then they travel as neurons."""
        return False

    @property
    def steady(self) -> bool:
        """Does the same share always keep equally many neurons of every group?"""
        return False

    def clash(self, method: Method) -> str | None:
        """Clients must know what to do without the rest."""
        if method.local.traits.cuts or method.local.traits.needs_whole:
            return None
        rule = type(method.local).__name__
        return f"it sends part of the model, but {rule} trains all of it; put SubModel() or KeepOwn() into local."

    @abstractmethod
    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """A mask [C, P], and the neurons [C, K] if it is made of whole ones."""


class Upload(Part):
    """What goes back; decided on the client."""

    @property
    def rows(self) -> bool:
        """Are masks made of whole rows, all that leads into a neuron? Then they travel as neurons."""
        return False

    @abstractmethod
    def __call__(
        self, setting: Setting, task: Task, state: State, first: Tensor, last: Tensor, chance: Chance
    ) -> Tensor | None:
        """A mask [C, P] from the weights before and after training, or None for everything."""


class Admit(ServerPart):
    """Which replies count."""

    @abstractmethod
    def __call__(self, memory: State, setting: Setting, model: Tensor, task: Task, reply: Reply) -> tuple[Reply, State]:
        """The replies, of which those refused have not `arrived`, and `rejected` says why."""


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
