"""Mask: neurons chosen once and for all by each client's first reply."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Mask
from fedloom.core.types import Portion, Reply, Setting, State
from fedloom.errors import BadExperiment, unknown
from fedloom.parts.mask.ranked import portion

KINDS = ("l1", "l2", "change")


@dataclass(frozen=True)
class OwnScores(Mask):
    """The best `share` of every group of neurons by the client's own first reply, never chosen again.

    A neuron's score is the `l1` or `l2` norm of the weights and bias into it as the client returned them, or the l2
    norm of their `change`. Until its first reply has arrived, a client trains the whole model; this warm-up is sent and
    counted in full, whatever the share. The server remembers N x K bools.
    """

    by: str = "l2"

    def __post_init__(self) -> None:
        if self.by not in KINDS:
            raise BadExperiment(unknown("score of own neurons", self.by, KINDS))

    @property
    def of_neurons(self) -> bool:
        """It does."""
        return True

    def init(self, setting: Setting, model: Tensor) -> State:
        """No client's neurons are chosen."""
        fleet, device = setting.fleet.size, model.device
        return {
            "keep": torch.ones(fleet, setting.neurons.size, dtype=torch.bool, device=device),
            "known": torch.zeros(fleet, dtype=torch.bool, device=device),
            "share": torch.ones(fleet, device=device),  # what each client was last allocated, for when its reply comes
        }

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Return the neurons chosen before; all of them for clients without a choice yet."""
        allocated = memory["share"].index_put((ids,), share.to(memory["share"].dtype))
        sent = torch.where(memory["known"][ids], share, 1)
        return portion(setting.neurons, memory["keep"][ids], sent), {**memory, "share": allocated}

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """Choose the neurons of clients whose first reply arrived."""
        ids, first = reply.ids, reply.arrived & ~memory["known"][reply.ids]
        if first.device.type == "cpu" and not bool(first.any()):
            return memory
        values = reply.params - model if self.by == "change" else reply.params
        scores = setting.neurons.score(values, "l1" if self.by == "l1" else "l2")
        keep = setting.neurons.cut(scores, memory["share"][ids])
        return {
            "keep": memory["keep"].index_put((ids,), torch.where(first[:, None], keep, memory["keep"][ids])),
            "known": memory["known"].index_put((ids,), memory["known"][ids] | first),
            "share": memory["share"],
        }
