"""FedSelect (Tamirisa et al., CVPR 2024): a growing part of every client's network becomes its own.

The structured variant of the FedSPU paper: a share of the neurons of every hidden layer is personal; it is `first`
after a client's first participation and grows by `grow` with every further one up to `last`. The neurons that changed
most (L2 norm of the change of the weights into them, as the server receives it) become personal and remain so. A number
belongs to its output neuron; the output layer is always global. The personal part stays with the client and goes on
training there, the global part is sent, trained and averaged over the clients that have it. Different from the
original, which chooses single weights in a few steps of 25 % and trains the two parts in turn, here at the same time.
`first = last = 0` is FedAvg. The server remembers N x K bools.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.paper import paper
from fedloom.core.part import Mask
from fedloom.core.types import Portion, Reply, Setting, State
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.parts.local.keep_own import KeepOwn


@dataclass(frozen=True)
class GlobalPart(Mask):
    """Everything but each client's personal neurons."""

    first: float = 0.25
    last: float = 0.5
    grow: float = 0.05

    def __post_init__(self) -> None:
        if not (0 < self.first <= self.last <= 1 or self.first == self.last == 0):
            raise BadExperiment(
                f"first and last (personal shares) are {self.first} and {self.last}; expected 0 < first <= last <= 1, "
                "or 0 for both."
            )
        if self.grow < 0:
            raise BadExperiment(f"grow (of the personal share) is {self.grow}; it must not be negative.")

    @property
    def of_neurons(self) -> bool:
        """It does."""
        return True

    @property
    def rows(self) -> bool:
        """Masks are the rows of neurons that are not personal."""
        return True

    def init(self, setting: Setting, model: Tensor) -> State:
        """No neuron is personal."""
        fleet, device = setting.fleet.size, model.device
        return {
            "personal": torch.zeros(fleet, setting.neurons.size, dtype=torch.bool, device=device),
            "heard": torch.zeros(fleet, dtype=torch.int64, device=device),  # [N] replies of each client
        }

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Return the numbers whose output neuron is not personal."""
        personal = memory["personal"][ids]
        if personal.device.type == "cpu" and not bool(personal.any()):
            return Portion(), memory
        return Portion(setting.neurons.expand(~personal, rows=True)), memory

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """Make more neurons personal for clients whose reply arrived."""
        if self.last == 0:
            return memory
        ids, neurons = reply.ids, setting.neurons
        heard = memory["heard"].index_add(0, ids, reply.arrived.long())
        share = (self.first + self.grow * (heard[ids] - 1).clamp(min=0).double()).clamp(max=self.last)
        had = memory["personal"][ids]
        scores = neurons.score(reply.params - model).masked_fill(had, torch.inf)
        taken = neurons.cut(scores, share)
        personal = torch.where(reply.arrived[:, None], taken, had)
        return {"personal": memory["personal"].index_put((ids,), personal), "heard": heard}


@paper(
    "Tamirisa et al., CVPR",
    2024,
    "all but a growing part of neurons that each client keeps for itself",
    reading="the FedSPU paper",
)
def fedselect_neurons(first: float = 0.25, last: float = 0.5, grow: float = 0.05) -> Method:
    """`first` and `last` bound the personal share of neurons, which grows by `grow` per participation."""
    return Method(mask=GlobalPart(first, last, grow), local=KeepOwn())
