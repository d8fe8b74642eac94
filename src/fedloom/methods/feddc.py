"""FedDC (Gao et al., arXiv:2203.11751): each client learns its own drift and is corrected for it and its gradient.

The correction is `a_i * (w - (w_global - h_i)) - c_i + c / w_i`, `a_i = alpha / w_i`; then `h_i += w_end - w_global`,
`c_i <- c_i - c / w_i - (w_end - w_global) / (K * rate)`, with the learning rate before decay as in the authors' code.
The server adds `(1/N) * sum of (c_i+ - c_i) * w_i` to `c` and sends the cohort's plain mean plus the fleet's mean of
`h_i`. Unlike in that code, all state is in the checkpoint, and the whole correction is clipped.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.paper import paper
from fedloom.core.rule import LocalRule, Shift, Traits
from fedloom.core.types import Reply, Setting, State, Task, column
from fedloom.errors import BadExperiment
from fedloom.method import Method
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.local.drift import add_drift, inside, mean_drift, relative_size


@dataclass(frozen=True)
class DriftCorrection(LocalRule):
    """A drift variable and a control variate for every client."""

    alpha: float = 0.01

    def __post_init__(self) -> None:
        if self.alpha < 0:
            raise BadExperiment(f"alpha (FedDC's regulariser) is {self.alpha}; it must not be negative.")

    @property
    def traits(self) -> Traits:
        """Every step is corrected."""
        return Traits(corrects=True, shifts=True, moves_model=True)

    def client_state(self, setting: Setting, model: Tensor) -> State:
        """Zeros for drift and control."""
        return {"drift": torch.zeros_like(model), "control": torch.zeros_like(model)}

    def shift(self, task: Task, state: State, first: Tensor) -> Shift:
        """The drift penalty's gradient and the gradient correction."""
        size = column(task.extras["size"], first)
        pull, push = self.alpha / size, task.extras["control"] / size
        return Shift(pull, push.sub_(state["control"]).addcmul_(pull, state["drift"]))

    def finish(
        self, task: Task, state: State, first: Tensor, last: Tensor, steps: Tensor
    ) -> tuple[Tensor, State, State]:
        """Update both variables; the change of control is sent with the weights."""
        size, travel = column(task.extras["size"], first), column(steps * task.base_rate, first)
        change = inside(task, (first - last).div_(travel).addcdiv_(task.extras["control"], size, value=-1))
        kept = {"drift": inside(task, last - first).add_(state["drift"]), "control": state["control"] + change}
        return last, {"change": change}, kept

    def server_state(self, setting: Setting, model: Tensor) -> State:
        """Zeros for drift and control."""
        return {"drift": torch.zeros_like(model), "control": torch.zeros_like(model)}

    def brief(self, memory: State, setting: Setting, ids: Tensor) -> State:
        """The server's control, and each client's relative size."""
        control = memory["control"]
        return {"control": control.expand(len(ids), -1), "size": relative_size(setting, ids, control.dtype)}

    def debrief(self, memory: State, setting: Setting, old: Tensor, new: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Update the control by relative sizes, and add the fleet's mean drift to the model."""
        weight = relative_size(setting, reply.ids, new.dtype) * reply.arrived / setting.fleet.size
        drift = mean_drift(memory, setting, old, reply)
        control = memory["control"] + weight @ reply.extras["change"]
        return add_drift(new, old, drift, reply), {"drift": drift, "control": control}


@paper("Gao et al., CVPR", 2022, "none: whole models")
def feddc(alpha: float = 0.01) -> Method:
    """`alpha` weighs the drift penalty."""
    return Method(local=DriftCorrection(alpha), aggregate=CoverageMean("uniform"))
