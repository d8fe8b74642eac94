"""Which part is each client sent? The rows of numbers that it last sent itself, and now and then everything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Mask
from fedloom.core.types import Portion, Reply, Setting, State
from fedloom.errors import BadExperiment
from fedloom.neurons.leading import LeadingNeurons
from fedloom.neurons.rows import rows_of

if TYPE_CHECKING:
    from fedloom.method import Method


@dataclass(frozen=True)
class LastSent(Mask):
    """What each client's last arrived reply held, row by row; everything at first and after every `every` rounds.

    A row is what leads into one neuron, with what a norm layer has for it; numbers that no neuron owns always travel.
    With `models`, everything is what the client owns. The server remembers N x (K + O) bools.
    """

    every: int = 5
    models: LeadingNeurons | None = None  # None: everyone has the whole network

    def __post_init__(self) -> None:
        if self.every < 1:
            raise BadExperiment(f"every (rounds until everything is sent) is {self.every}; it is at least 1.")

    @property
    def rows(self) -> bool:
        """Unless cut to what a client owns."""
        return self.models is None

    def clash(self, method: Method) -> str | None:
        """All parts must mean the same networks."""
        for slot in ("allocate", "upload"):
            part = getattr(method, slot)
            if getattr(part, "models", self.models) != self.models:
                return f"it has models={self.models}, but {type(part).__name__} {part.models}; give both the same."
        if self.models is not None and not method.local.traits.keeps_network:
            return "clients own parts of the network (models), so put KeepOwnPart() into local."
        return super().clash(method)

    def init(self, setting: Setting, model: Tensor) -> State:
        """Nobody has sent anything, so everyone will be sent everything."""
        size = setting.fleet.size, setting.neurons.full_size
        return {"rows": torch.ones(size, dtype=torch.bool, device=model.device)}

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Rows within what each owns; no mask at all where that is everything."""
        neurons, rows = setting.neurons, memory["rows"][ids]
        everything = (chance.round - 1) % self.every == 0
        if self.models is not None:
            keep = self.models.of(neurons, ids)
            mask = neurons.expand(keep)
            return Portion(mask if everything else mask & neurons.expand(rows, rows=True), keep), memory
        if everything or (rows.device.type == "cpu" and bool(rows.all())):
            return Portion(), memory
        return Portion(neurons.expand(rows, rows=True)), memory

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """The rows of those who arrived; of the others the last known stay."""
        known = memory["rows"] if reply.everyone else memory["rows"][reply.ids]
        sent = torch.ones_like(known) if reply.mask is None else rows_of(setting.neurons, reply.mask)
        rows = torch.where(reply.arrived[:, None], sent, known)
        return {"rows": rows if reply.everyone else memory["rows"].index_put((reply.ids,), rows)}
