"""FedNova (Wang et al., NeurIPS 2020, arXiv:2007.07481): changes are normalised by how far clients' steps carry.

Client i sends `y_i` after `t_i` steps from `x`. With `a_i` the length of what it went, in steps without momentum,

    d_i = (y_i - x) / a_i,    t_eff = sum_i p_i a_i,    x <- x + t_eff * sum_i p_i d_i,    p_i by examples

`a_i = t_i` for SGD, `(t - m (1 - m^t) / (1 - m)) / (1 - m)` with momentum m, and `(1 - (1 - rate mu)^t) / (rate mu)`
with a proximal term, where `t_eff = sum_i p_i t_i` as in the authors' code. Weight decay does not enter. Momentum with
a proximal term is refused: that code mixes both recursions. With masks all sums are over a number's senders, and `p_i`
of them add up to 1. If all `a_i` are equal and there is no proximal term it is FedAvg to the bit.

Clients' steps differ here by how many examples they have; the paper also draws 2 to 5 epochs for each client and round.
The authors divide the server's momentum by the client's rate: at a constant rate it is `server.momentum=0.9`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.means import coverage_mean
from fedloom.core.optimiser import Sgd
from fedloom.core.paper import paper
from fedloom.core.part import Aggregate
from fedloom.core.rule import LocalRule
from fedloom.core.types import Reply, Setting, State
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.parts.local.prox import Prox


@dataclass(frozen=True)
class NormalisedMean(Aggregate):
    """`t_eff` times the mean of normalised changes, for clients with this `momentum` or this proximal `mu`."""

    momentum: float = 0.0
    mu: float = 0.0

    def __post_init__(self) -> None:
        if self.momentum and self.mu:
            raise BadExperiment(
                f"momentum is {self.momentum} and mu {self.mu}; how far both together carry is not known: set one to 0."
            )

    def clash(self, method: Method) -> str | None:
        """Refuse clients whose steps are others than it reckons with."""
        optimiser = method.optimiser
        if not (optimiser.plain or optimiser.heavy):
            return "it knows how far SGD carries, without clipping, from rest every round; set training.optimiser=sgd."
        if optimiser.momentum != self.momentum:
            return (
                f"it reckons with momentum {self.momentum}, and clients have {optimiser.momentum}; set method.momentum "
                "and training.momentum to the same."
            )
        return None

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Divide each change by its length, and multiply the mean by that of the lengths."""
        weight = reply.arrived.to(model.dtype) * reply.report["examples"]
        plain, steps = coverage_mean(model, reply, weight), reply.report["steps"].double()
        length = self.lengths(steps, reply.rate)
        taken = steps if self.mu else length
        here = weight.double()
        whole = torch.where(reply.arrived, here / length.clamp(min=1e-12), 0)  # lost replies report 0 steps
        sent = reply.arrived[:, None] if reply.mask is None else reply.mask
        sent = sent.double()
        total = here @ sent
        change = (whole @ (reply.params - model).double()) * ((here * taken) @ sent) / (total * total).clamp(min=1e-30)
        first = reply.arrived.byte().argmax().reshape(1)
        least, most = (torch.where(reply.arrived, length, length.index_select(0, first))).aminmax()
        normalised = (model + change).to(model.dtype)
        alike = (least == most) if not self.mu else torch.zeros_like(least, dtype=torch.bool)
        trained = torch.arange(len(model), device=model.device) < setting.layout.trained
        return torch.where(alike | ~trained, plain, normalised), memory

    def lengths(self, steps: Tensor, rate: float | Tensor) -> Tensor:
        """`a_i` of clients that took these steps [C]."""
        if self.momentum:
            m = self.momentum
            return (steps - m * (1 - m**steps) / (1 - m)) / (1 - m)
        if self.mu:
            pull = rate * self.mu
            return (1 - (1 - pull) ** steps) / pull
        return steps


@paper("Wang et al., NeurIPS 2020", 2020, "none: whole models")
def fednova(momentum: float = 0.0, mu: float = 0.0) -> Method:
    """`momentum` is the clients' own, and `mu` weighs their pull towards the model that they were sent."""
    local = Prox(mu) if mu else LocalRule()
    return Method(local=local, optimiser=Sgd(momentum=momentum), aggregate=NormalisedMean(momentum, mu))
