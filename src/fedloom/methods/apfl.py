"""APFL (Deng, Kamani and Mahdavi, arXiv:2003.13461): a client's model is a mixture of its own and the common one.

With the model w that the client was sent and its own v, each step on a batch is

    w <- w - rate * grad f(w),    v <- v - rate * alpha * grad f(alpha v + (1 - alpha) w)

with the w just stepped, as in the authors' code. w is sent, and averaged uniformly: the common model is FedAvg's. A
client's model is `alpha v + (1 - alpha) w_i`, with w_i as it was after its last training. `adaptive` moves a client's
alpha after the first step of a round, within [0, 1]: `paper` by `-rate * <v - w, g>` with g the gradient of v's step,
`official` by the authors' code: `(alpha^2 + (1 - alpha)^2) <v - w, g> + 0.02 alpha` with v after the step. That code
mixes outputs, we mix weights; for linear models they are equal. v takes steps of plain SGD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedloom.core.paper import paper
from fedloom.core.rule import Descend, LocalRule, Traits
from fedloom.core.types import Setting, State, Task, column
from fedloom.errors import BadExperiment, unknown
from fedloom.layout import flatten
from fedloom.method import Method
from fedloom.parts.aggregate.coverage_mean import CoverageMean

ADAPTIVE = ("paper", "official")


@dataclass(frozen=True)
class Mixed(LocalRule):
    """Plain training of the model that was sent, and of an own one that is mixed with it."""

    alpha: float = 0.5
    adaptive: Literal["paper", "official"] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise BadExperiment(f"alpha (of the own model in the mixture) is {self.alpha}; it lies from 0 to 1.")
        if self.adaptive is not None and self.adaptive not in ADAPTIVE:
            raise BadExperiment(unknown("adaptive (how alpha moves)", self.adaptive, ADAPTIVE))

    @property
    def traits(self) -> Traits:
        """The own model follows the other one step by step."""
        return Traits(corrects=True, evolves=True, personal=True)

    @property
    def passes(self) -> int:
        """Gradients of two models."""
        return 2

    def clash(self, method: Method) -> str | None:
        """Refuse optimisers that the own model does not have."""
        if method.optimiser.plain and method.optimiser.weight_decay == 0:
            return None
        return "own models take steps of plain SGD; leave out momentum, weight_decay, clip and other optimisers."

    def client_state(self, setting: Setting, model: Tensor) -> State:
        """The initial network as the own model and as the last of the other one."""
        initial = flatten(setting.module, setting.layout).to(model)
        return {"own": initial, "last": initial, "alpha": model.new_full((), self.alpha)}

    def aside(self, task: Task, state: State, first: Tensor, steps: Tensor) -> State:
        """The own model, its part in the mixture, and whether a step is the first of the round."""
        begun = torch.ones_like(steps, dtype=torch.bool)
        return {"own": state["own"], "alpha": state["alpha"], "first": begun}

    def after(self, task: Task, state: State, params: Tensor, gradient: Descend) -> State:
        """The own model's step, and alpha's."""
        v, alpha, trained = task.extras["own"], task.extras["alpha"], task.trained
        mixture = self._mixture(alpha, v, params)
        slope = gradient(mixture)
        moved = torch.cat((v[:, :trained] - task.rate * column(alpha, v) * slope[:, :trained], mixture[:, trained:]), 1)
        if self.adaptive is not None:
            v = v if self.adaptive == "paper" else moved
            slant = ((v - params) * slope)[:, :trained].sum(1)
            if self.adaptive == "official":
                slant = (alpha**2 + (1 - alpha) ** 2) * slant + 0.02 * alpha
            alpha = torch.where(task.extras["first"], (alpha - task.rate * slant).clamp(0, 1), alpha)
        return {"own": moved, "alpha": alpha, "first": torch.zeros_like(task.extras["first"])}

    def finish(
        self, task: Task, state: State, first: Tensor, last: Tensor, steps: Tensor
    ) -> tuple[Tensor, State, State]:
        """Send the common model, and keep both."""
        return last, {}, {"own": task.extras["own"], "last": last, "alpha": task.extras["alpha"]}

    def personal(self, setting: Setting, model: Tensor, state: State) -> Tensor | None:
        """The mixtures."""
        return self._mixture(state["alpha"], state["own"], state["last"])

    def _mixture(self, alpha: Tensor, own: Tensor, common: Tensor) -> Tensor:
        """`alpha v + (1 - alpha) w`."""
        alpha = column(alpha, own)
        return alpha * own + (1 - alpha) * common


@paper("Deng, Kamani and Mahdavi, arXiv:2003.13461", 2020, "none: whole models")
def apfl(alpha: float = 0.5, adaptive: Literal["paper", "official"] | None = None) -> Method:
    """`alpha` is the part of a client's own model in the mixture, at first if it is `adaptive`."""
    return Method(local=Mixed(alpha, adaptive), aggregate=CoverageMean("uniform"))
