"""Local: clients stop for good once a mix of their training loss and held-out loss rises (FedSPU)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedloom.core.rule import LocalRule, Traits
from fedloom.core.types import Setting, State, Task
from fedloom.errors import BadExperiment

if TYPE_CHECKING:
    from fedloom.method import Method


@dataclass(frozen=True)
class StopEarly(LocalRule):
    """Reports `stopped`: 1 once `balance * training + (1 - balance) * held out` has risen since the last round, else 0.

    Without held-out examples the training loss alone decides. A NaN loss counts as risen. A client that has stopped
    reports so whenever it is asked again, whatever its loss is then.
    """

    balance: float = 0.7

    def __post_init__(self) -> None:
        if not 0 <= self.balance <= 1:
            raise BadExperiment(f"balance (weight of the training loss) is {self.balance}; it lies from 0 to 1.")

    @property
    def traits(self) -> Traits:
        """Clients test their models in every round they take part in."""
        return Traits(judges=True)

    def clash(self, method: Method) -> str | None:
        """Refuse selections that go on asking stopped clients."""
        if method.select.skips_stopped:
            return None
        return f"clients stop, but {type(method.select).__name__} goes on asking them; put StillRunning() into select."

    def client_state(self, setting: Setting, model: Tensor) -> State:
        """An infinite loss, so that the first round never stops a client."""
        return {"last": model.new_full((), torch.inf), "stopped": model.new_zeros((), dtype=torch.bool)}

    def judge(self, task: Task, state: State, training: Tensor, held_out: Tensor) -> tuple[State, State]:
        """Compare the loss with that of the client's previous round."""
        held_out = torch.where(held_out.isnan(), training, held_out)
        loss = self.balance * training + (1 - self.balance) * held_out
        stopped = state["stopped"] | ~(loss <= state["last"])
        return {"stopped": stopped.to(loss.dtype)}, {"last": loss, "stopped": stopped}
