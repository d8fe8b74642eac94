"""Local: layers that are trained one after the other, some of them in the first epochs and the others in the last."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedloom.core.layers import layers_of
from fedloom.core.rule import Descend, LocalRule, Traits
from fedloom.core.types import Setting, State, Task
from fedloom.errors import BadExperiment


@dataclass(frozen=True)
class InTurn(LocalRule):
    """`epochs` of the layers that `first` names, then `rest` epochs of all others, by one optimiser.

    A number neither moves nor decays while it is not trained, and its moments stay. Of a work of another length these
    are the same shares, rounded down for the first layers.
    """

    first: str = "head"
    epochs: int = 10
    rest: int = 1

    def __post_init__(self) -> None:
        if self.epochs < 0 or self.rest < 0 or self.epochs + self.rest == 0:
            raise BadExperiment(
                f"epochs and rest are {self.epochs} and {self.rest}; expected at least one epoch in all."
            )

    @property
    def traits(self) -> Traits:
        """Other numbers are trained from some step on."""
        return Traits(corrects=True, evolves=True)

    def constants(self, setting: Setting) -> State:
        """Which numbers come first."""
        return {"first": layers_of(setting).some(self.first, "first")}

    def aside(self, task: Task, state: State, first: Tensor, steps: Tensor) -> State:
        """How many steps the first layers have left [C, 1]."""
        return {"left": (steps * self.epochs // (self.epochs + self.rest))[:, None]}

    def trains(self, task: Task) -> Tensor | None:
        """The first layers or the others."""
        return task.extras["first"] == (task.extras["left"] > 0)

    def after(self, task: Task, state: State, params: Tensor, gradient: Descend) -> State:
        """One step less."""
        return {"left": task.extras["left"] - 1}
