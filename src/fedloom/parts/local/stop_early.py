"""Leave for good once things get worse: a client weighs its training loss and its loss on examples kept back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedloom.core.rule import LocalRule, Traits
from fedloom.core.types import Setting, State, Task
from fedloom.errors import BadExperiment
from fedloom.parts.select.still_running import StillRunning

if TYPE_CHECKING:
    from fedloom.method import Method


@dataclass(frozen=True)
class StopEarly(LocalRule):
    """Reports `stopped` (1 or 0): has `balance * training + (1 - balance) * held out` risen since its last round?

    A client without examples kept back goes by its training loss alone. A loss that is not a number counts as risen.
    Who has stopped says so whenever it is asked again, whatever its loss is then.
    """

    balance: float = 0.7

    def __post_init__(self) -> None:
        if not 0 <= self.balance <= 1:
            raise BadExperiment(f"balance (weight of the training loss) is {self.balance}; it lies from 0 to 1.")

    @property
    def traits(self) -> Traits:
        """A client judges its model in every round it takes part in."""
        return Traits(judges=True)

    def clash(self, method: Method) -> str | None:
        """Somebody must listen."""
        if isinstance(method.select, StillRunning):
            return None
        return f"clients stop, but {type(method.select).__name__} goes on asking them; put StillRunning() into select."

    def client_state(self, setting: Setting, model: Tensor) -> State:
        """Any loss is better than none."""
        return {"last": model.new_full((), torch.inf), "stopped": model.new_zeros((), dtype=torch.bool)}

    def judge(self, task: Task, state: State, training: Tensor, held_out: Tensor) -> tuple[State, State]:
        """Compare with the round the client took part in last."""
        held_out = torch.where(held_out.isnan(), training, held_out)
        loss = self.balance * training + (1 - self.balance) * held_out
        stopped = state["stopped"] | ~(loss <= state["last"])
        return {"stopped": stopped.to(loss.dtype)}, {"last": loss, "stopped": stopped}
