"""Who takes part? Everyone who has not stopped is equally likely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import NobodyLeft, Select
from fedloom.core.types import Cohort, Reply, Setting, State
from fedloom.errors import BadExperiment

if TYPE_CHECKING:
    from fedloom.method import Method


@dataclass(frozen=True)
class StillRunning(Select):
    """`count` of those who have not reported `stopped`, without repetition; all of them where fewer are left."""

    count: int = 10

    def __post_init__(self) -> None:
        if self.count < 1:
            raise BadExperiment(f"count of clients a round is {self.count}; at least 1 must take part.")

    def clash(self, method: Method) -> str | None:
        """Somebody must stop."""
        if method.local.traits.judges:
            return None
        rule = type(method.local).__name__
        return f"it leaves out who has stopped, and clients under {rule} never do; put StopEarly() into local."

    def init(self, setting: Setting, model: Tensor) -> State:
        """Nobody has stopped."""
        return {"stopped": torch.zeros(setting.fleet.size, dtype=torch.bool, device=model.device)}

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """While nobody has stopped, those whom `Uniform` selects."""
        stopped = memory["stopped"]
        left = int((~stopped).sum())  # the one number to wait for on an accelerator: how large the cohort is
        if left == 0:
            raise NobodyLeft("all clients have stopped.")
        keys = chance.key("select", torch.arange(setting.fleet.size, device=chance.device))
        keys = keys.masked_fill(stopped, torch.iinfo(keys.dtype).max)
        ids = torch.topk(keys, min(self.count, left), largest=False).indices.sort().values
        return Cohort(ids, torch.ones_like(ids, dtype=torch.bool)), memory

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """A client that stopped never comes back; one whose reply was lost is asked again."""
        if "stopped" not in reply.report:  # nobody was reached
            return memory
        now = memory["stopped"][reply.ids] | (reply.arrived & (reply.report["stopped"] > 0))
        return {"stopped": memory["stopped"].index_put((reply.ids,), now)}

    def record(self, memory: State) -> State:
        """How many have stopped."""
        return {"stopped": memory["stopped"].sum()}
