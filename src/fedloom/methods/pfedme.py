"""pFedMe (Dinh, Tran and Nguyen, NeurIPS 2020, arXiv:2006.08848): own models around a local one that is sent.

A client begins with `theta = w_i = w^t`. For each of `steps` batches it takes `repeat` steps on it

    theta <- theta - rate * (grad f(theta) + lam * (theta - w_i)),    and then    w_i <- w_i - lam * eta * (w_i - theta)

where rate is the clients' learning rate. It sends w_i, and `w^(t+1) = (1 - beta) w^t + beta * mean_i w_i`, uniformly.
Its own model is theta. Different from the authors' code: there all clients train in every round and then some send,
here those that are asked train; it decays theta a little; and its model for the personal figures shares memory with one
that w_i overwrites before it is tried, so that the published figures are of w_i. The paper has `lam=15`,
`eta=0.005` and `steps=20` for 800 rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.optimiser import Sgd
from fedloom.core.paper import paper
from fedloom.core.part import Aggregate
from fedloom.core.rule import Descend, LocalRule, Traits
from fedloom.core.types import Setting, State, Task, column
from fedloom.core.work import Work
from fedloom.errors import BadExperiment
from fedloom.layout import flatten
from fedloom.method import Method
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.aggregate.server_optimiser import ServerSgd
from fedloom.parts.aggregate.stepped import Stepped


@dataclass(frozen=True)
class Moreau(LocalRule):
    """An own model that is pulled to a local one, which follows it after every `repeat` steps and is sent."""

    lam: float = 5.0
    eta: float = 0.1
    repeat: int = 5

    def __post_init__(self) -> None:
        for name in ("lam", "eta"):
            if getattr(self, name) < 0:
                raise BadExperiment(f"{name} (of pFedMe) is {getattr(self, name)}; it must not be negative.")

    @property
    def traits(self) -> Traits:
        """The local model moves within the round."""
        return Traits(corrects=True, evolves=True, personal=True)

    def clash(self, method: Method) -> str | None:
        """Refuse batches that are used another number of times."""
        if method.work.repeat == self.repeat:
            return None
        return f"it takes {self.repeat} steps on a batch, and clients' work {method.work.repeat}; set both the same."

    def client_state(self, setting: Setting, model: Tensor) -> State:
        """The initial network, which every client can build."""
        return {"own": flatten(setting.module, setting.layout).to(model)}

    def aside(self, task: Task, state: State, first: Tensor, steps: Tensor) -> State:
        """The local model, and the steps that were taken."""
        return {"local": first, "taken": torch.zeros_like(steps)}

    def correct(self, task: Task, state: State, first: Tensor, params: Tensor, grads: Tensor) -> Tensor:
        """The penalty's gradient, `lam * (theta - w_i)`."""
        return grads + self.lam * (params - task.extras["local"])

    def after(self, task: Task, state: State, params: Tensor, gradient: Descend) -> State:
        """Move the local model once a batch was used up."""
        local, taken = task.extras["local"], task.extras["taken"] + 1
        due = column(taken % self.repeat == 0, local)
        moved = local - self.lam * self.eta * (local - params)
        return {"local": torch.where(due, moved, local), "taken": taken}

    def finish(
        self, task: Task, state: State, first: Tensor, last: Tensor, steps: Tensor
    ) -> tuple[Tensor, State, State]:
        """Send the local model, with the statistics that ran, and keep the own one."""
        local = task.extras["local"]
        return torch.cat((local[:, : task.trained], last[:, task.trained :]), 1), {}, {"own": last}

    def personal(self, setting: Setting, model: Tensor, state: State) -> Tensor | None:
        """The own models."""
        return state["own"]


@paper("Dinh, Tran and Nguyen, NeurIPS 2020", 2020, "none: whole models")
def pfedme(
    lam: float = 5.0, eta: float = 0.1, steps: int = 5, repeat: int = 5, rate: float = 0.09, beta: float = 1.0
) -> Method:
    """`lam` pulls own models to local ones, which move by `lam * eta` after every `repeat` steps on a batch."""
    mean: Aggregate = CoverageMean("uniform")
    return Method(
        local=Moreau(lam, eta, repeat),
        optimiser=Sgd(rate=rate),
        work=Work(steps=steps, repeat=repeat, batch=20),
        aggregate=mean if beta == 1 else Stepped(mean, ServerSgd(beta)),
    )
