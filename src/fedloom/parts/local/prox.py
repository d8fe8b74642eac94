"""Local: a proximal term that pulls weights to their start."""

from dataclasses import dataclass

from torch import Tensor

from fedloom.core.rule import LocalRule, Shift, Traits
from fedloom.core.types import State, Task
from fedloom.errors import BadExperiment


@dataclass(frozen=True)
class Prox(LocalRule):
    """Adds `mu / 2 * ||w - w_start||^2` to the loss."""

    mu: float = 0.01

    def __post_init__(self) -> None:
        if self.mu < 0:
            raise BadExperiment(f"mu (proximal weight) is {self.mu}; it must not be negative.")

    @property
    def traits(self) -> Traits:
        """With `mu` 0 this is plain descent, step for step."""
        return Traits(corrects=self.mu > 0, shifts=self.mu > 0)

    def shift(self, task: Task, state: State, first: Tensor) -> Shift:
        """The penalty's gradient, `mu * (w - w_start)`."""
        return Shift(self.mu)
