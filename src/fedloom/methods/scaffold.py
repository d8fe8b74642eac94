"""SCAFFOLD (Karimireddy et al., arXiv:1910.06378): control variates correct each step for client drift.

Algorithm 1, option II, in the reading of the FedDyn and FedDC reference codes: the server's control is divided by the
client's relative size in the correction (`c / w_i`, `w_i = n_i / mean n`), changes are weighted by it on the server,
`K * rate` uses the learning rate before decay, and the global model is the plain mean (global step 1). Unlike those
codes a client that trains only part of the model does not change the control of the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.paper import paper
from fedloom.core.rule import LocalRule, Shift, Traits
from fedloom.core.types import Reply, Setting, State, Task, column
from fedloom.method import Method
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.local.drift import inside, relative_size


@dataclass(frozen=True)
class ControlVariates(LocalRule):
    """Each step is corrected by `c / w_i - c_i`."""

    @property
    def traits(self) -> Traits:
        """Every step is corrected, from the second round on by more than zero."""
        return Traits(corrects=True, shifts=True)

    def client_state(self, setting: Setting, model: Tensor) -> State:
        """`c_i = 0`."""
        return {"control": torch.zeros_like(model)}

    def shift(self, task: Task, state: State, first: Tensor) -> Shift:
        """`c / w_i - c_i`."""
        push = task.extras["control"] / column(task.extras["size"], first)
        return Shift(push=push.sub_(state["control"]))

    def finish(
        self, task: Task, state: State, first: Tensor, last: Tensor, steps: Tensor
    ) -> tuple[Tensor, State, State]:
        """`c_i <- c_i - c + (w_start - w_end) / (K * rate)`."""
        travel = column(steps * task.base_rate, first)
        change = inside(task, (first - last).div_(travel).sub_(task.extras["control"]))
        return last, {"change": change}, {"control": state["control"] + change}

    def server_state(self, setting: Setting, model: Tensor) -> State:
        """`c = 0`."""
        return {"control": torch.zeros_like(model)}

    def brief(self, memory: State, setting: Setting, ids: Tensor) -> State:
        """The server's control, and each client's relative size."""
        control = memory["control"]
        return {"control": control.expand(len(ids), -1), "size": relative_size(setting, ids, control.dtype)}

    def debrief(self, memory: State, setting: Setting, old: Tensor, new: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """`c <- c + (1/N) * sum of (c_i+ - c_i) * w_i` over those who arrived."""
        weight = relative_size(setting, reply.ids, new.dtype) * reply.arrived / setting.fleet.size
        return new, {"control": memory["control"] + weight @ reply.extras["change"]}


@paper("Karimireddy et al., ICML", 2020, "none: whole models")
def scaffold() -> Method:
    """Control variates, and the plain mean of the cohort."""
    return Method(local=ControlVariates(), aggregate=CoverageMean("uniform"))
