"""FedDyn (Acar et al., arXiv:2111.04263): each client's loss is regularised so that local optima agree with the global.

The local objective adds `a_i * (<w, h_i - w_global> + ||w||^2 / 2)` with `a_i = alpha / w_i`; `h_i` sums the client's
drifts. The server sends the cohort's plain mean plus the fleet's mean of `h_i`, and this model is evaluated. As in the
authors' code `h` here is the paper's gradient state divided by `-alpha`. Different from that code: there the `a_i * w`
part is weight decay and is not clipped; here the whole correction is clipped. `alpha = 0` is not FedAvg, since the
server still adds the mean drift.
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
class DynamicRegulariser(LocalRule):
    """Each step is corrected by `alpha / w_i * (w - w_start + h_i)`."""

    alpha: float = 0.01

    def __post_init__(self) -> None:
        if self.alpha < 0:
            raise BadExperiment(f"alpha (FedDyn's regulariser) is {self.alpha}; it must not be negative.")

    @property
    def traits(self) -> Traits:
        """Every step is corrected."""
        return Traits(corrects=True, shifts=True, moves_model=True)

    def client_state(self, setting: Setting, model: Tensor) -> State:
        """`h_i = 0`."""
        return {"drift": torch.zeros_like(model)}

    def shift(self, task: Task, state: State, first: Tensor) -> Shift:
        """The regulariser's gradient."""
        pull = self.alpha / column(task.extras["size"], first)
        return Shift(pull, pull * state["drift"])

    def finish(
        self, task: Task, state: State, first: Tensor, last: Tensor, steps: Tensor
    ) -> tuple[Tensor, State, State]:
        """`h_i <- h_i + w_end - w_start`; only the weights are sent."""
        return last, {}, {"drift": inside(task, last - first).add_(state["drift"])}

    def server_state(self, setting: Setting, model: Tensor) -> State:
        """A mean drift of zero."""
        return {"drift": torch.zeros_like(model)}

    def brief(self, memory: State, setting: Setting, ids: Tensor) -> State:
        """Each client's relative size."""
        return {"size": relative_size(setting, ids, memory["drift"].dtype)}

    def debrief(self, memory: State, setting: Setting, old: Tensor, new: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Add the fleet's mean drift to the cohort's mean."""
        drift = mean_drift(memory, setting, old, reply)
        return add_drift(new, old, drift, reply), {"drift": drift}


@paper("Acar et al., ICLR", 2021, "none: whole models")
def feddyn(alpha: float = 0.01) -> Method:
    """`alpha` weighs the regulariser."""
    return Method(local=DynamicRegulariser(alpha), aggregate=CoverageMean("uniform"))
