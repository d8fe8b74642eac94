"""Mask: the rows that each client last sent itself, and in regular rounds everything."""

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
    """The rows of each client's last arrived reply; everything in the first round and after every `every` rounds.

    A row is what leads into one neuron, with its numbers in a norm layer; numbers that no neuron owns are always sent.
    With `models`, everything means what the client owns. The server remembers N x (K + O) bools.
    """

    every: int = 5
    models: LeadingNeurons | None = None  # None: every client has the whole network

    def __post_init__(self) -> None:
        if self.every < 1:
            raise BadExperiment(f"every (rounds until everything is sent) is {self.every}; it is at least 1.")

    @property
    def of_neurons(self) -> bool:
        """It does."""
        return True

    @property
    def rows(self) -> bool:
        """Masks are whole rows, unless they are cut to what a client owns."""
        return self.models is None

    @property
    def networks(self) -> tuple[LeadingNeurons | None, ...]:
        """Everything is what each client owns."""
        return (self.models,)

    def clash(self, method: Method) -> str | None:
        """Refuse parts that take clients to own other networks, and rules that do not keep one."""
        for part in (method.select, method.allocate, method.upload):
            for models in part.networks:
                if models != self.models:
                    return f"it has models={self.models}, but {type(part).__name__} {models}; give both the same."
        if self.models is not None and not method.local.traits.keeps_network:
            return "clients own parts of the network (models), so put KeepOwnPart() into local."
        return super().clash(method)

    def init(self, setting: Setting, model: Tensor) -> State:
        """No client has sent anything, so every client will be sent everything."""
        size = setting.fleet.size, setting.neurons.full_size
        return {"rows": torch.ones(size, dtype=torch.bool, device=model.device)}

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Return the rows within what each client owns; no mask where that is everything."""
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
        """Remember the rows of replies that arrived; for other clients the last known rows stay."""
        known = memory["rows"] if reply.everyone else memory["rows"][reply.ids]
        sent = torch.ones_like(known) if reply.mask is None else rows_of(setting.neurons, reply.mask)
        rows = torch.where(reply.arrived[:, None], sent, known)
        return {"rows": rows if reply.everyone else memory["rows"].index_put((reply.ids,), rows)}
