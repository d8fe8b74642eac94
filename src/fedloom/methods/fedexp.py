"""FedExP (Jhunjhunwala et al., ICLR 2023, arXiv:2301.09604): the server's step is longer where clients disagree.

With `D_i` the clients' changes, D their mean by examples and `eps`

    eta = max(1, sum_i p_i ||D_i||^2 / (2 (||D||^2 + eps))),    w <- w + eta * D

With masks the squares are summed number by number, each over its senders. Running statistics follow the mean. `eps`
shrinks with the square of the clients' learning rate; the published code multiplies it by the number of clients in the
round (`by_cohort`). Different from the paper: the model that is tried is the last one, not the mean of the last two.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.means import coverage_mean
from fedloom.core.paper import paper
from fedloom.core.part import Aggregate
from fedloom.core.types import Reply, Setting, State
from fedloom.errors import BadExperiment
from fedloom.method import Method


@dataclass(frozen=True)
class Extrapolated(Aggregate):
    """A step along the mean change, at least as long, whose length follows from the changes' squares."""

    eps: float = 1e-3
    by_cohort: bool = False

    def __post_init__(self) -> None:
        if not self.eps >= 0:
            raise BadExperiment(f"eps is {self.eps}; it must not be negative.")

    def init(self, setting: Setting, model: Tensor) -> State:
        """The learning rate of the first step, not known yet, and the last step's length."""
        return {"rate": model.new_zeros((), dtype=torch.float64), "length": model.new_ones((), dtype=torch.float64)}

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Compare the mean of squares with the square of the mean."""
        trained, weight = setting.layout.trained, reply.arrived.to(model.dtype) * reply.report["examples"]
        new = coverage_mean(model, reply, weight)
        rate = torch.where(memory["rate"] == 0, reply.rate, memory["rate"])
        zeros = torch.zeros_like(model)
        squares = coverage_mean(zeros, reply._replace(params=(reply.params - model).square()), weight)
        eps = self.eps * (reply.rate / rate) ** 2 * (reply.arrived.sum() if self.by_cohort else 1)
        change = (new - model)[:trained].double()
        bound = 2 * (change.square().sum() + eps)
        length = (squares[:trained].double().sum() / bound.clamp(min=1e-300)).clamp(min=1)
        far = (model[:trained] + length * change).to(model.dtype)
        moved = torch.where(length > 1, far, new[:trained])
        return torch.cat((moved, new[trained:])), {"rate": rate, "length": length}

    def record(self, memory: State) -> State:
        """The length of the step."""
        return {"length": memory["length"]}


@paper("Jhunjhunwala et al., ICLR 2023", 2023, "none: whole models")
def fedexp(eps: float = 1e-3, by_cohort: bool = False) -> Method:
    """`eps` keeps the step short where all changes are small."""
    return Method(aggregate=Extrapolated(eps, by_cohort))
