"""Select: clients that have not stopped, all with equal probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import NobodyLeft
from fedloom.core.types import Cohort, Reply, Setting, State
from fedloom.parts.select.counted import Counted

if TYPE_CHECKING:
    from fedloom.method import Method


@dataclass(frozen=True)
class StillRunning(Counted):
    """`count` of the clients that have not reported `stopped`, without replacement; all of them if fewer are left."""

    count: int = 10

    @property
    def skips_stopped(self) -> bool:
        """A client that has stopped is never asked again."""
        return True

    def clash(self, method: Method) -> str | None:
        """Refuse rules under which no client ever stops."""
        if method.local.traits.judges:
            return None
        rule = type(method.local).__name__
        return f"it leaves out who has stopped, and clients under {rule} never do; put StopEarly() into local."

    def init(self, setting: Setting, model: Tensor) -> State:
        """No client has stopped."""
        return {"stopped": torch.zeros(setting.fleet.size, dtype=torch.bool, device=model.device)}

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """Draw among the clients left; while none has stopped, these are the clients that `Uniform` selects."""
        stopped = memory["stopped"]
        left = int((~stopped).sum())  # the one number to wait for on an accelerator: how large the cohort is
        if left == 0:
            raise NobodyLeft("all clients have stopped.")
        keys = chance.key("select", torch.arange(setting.fleet.size, device=chance.device))
        keys = keys.masked_fill(stopped, torch.iinfo(keys.dtype).max)
        ids = torch.topk(keys, min(self.count, left), largest=False).indices.sort().values
        return Cohort(ids, torch.ones_like(ids, dtype=torch.bool)), memory

    def next(self, memory: State, setting: Setting, chance: Chance, free: Tensor, count: int) -> tuple[Tensor, State]:
        """Of the free clients that have not stopped, in the order of `Uniform`."""
        running = ~memory["stopped"].cpu()
        if not bool(running.any()):
            raise NobodyLeft("all clients have stopped.")
        return chance.on_host().order("select", len(free), free.cpu() & running)[:count], memory

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """Remember who has stopped, for good; a client whose reply was lost is asked again."""
        if "stopped" not in reply.report:  # no client was reached
            return memory
        now = memory["stopped"][reply.ids] | (reply.arrived & (reply.report["stopped"] > 0))
        return {"stopped": memory["stopped"].index_put((reply.ids,), now)}

    def record(self, memory: State) -> State:
        """The number of clients that have stopped."""
        return {"stopped": memory["stopped"].sum()}
