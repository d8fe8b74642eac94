"""Ditto (Li et al., ICML 2021, arXiv:2012.04221): a model of each client's own, next to the common one.

A client trains the model `w^t` that it was sent as in FedAvg and sends it; these are averaged uniformly. On the same
batches it trains its own model v, which begins as the initial network, by the gradient of

    f_i(v) + lam / 2 * ||v - w^t||^2

v moves only in rounds in which the client is asked. `lam = 0` is local training in these rounds; whatever lam is, the
common model is FedAvg's. Different from the paper: both models take as many steps; its `dynamic` choice of lam on
validation data is left out. The PyTorch code that it links to has a penalty that is not squared, to the moving w.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedloom.core.paper import paper
from fedloom.core.rule import LocalRule, Shift, Traits
from fedloom.core.types import Setting, State, Task
from fedloom.errors import BadExperiment
from fedloom.layout import flatten
from fedloom.method import Method
from fedloom.parts.aggregate.coverage_mean import CoverageMean


@dataclass(frozen=True)
class Pulled(LocalRule):
    """The own model's training: a pull of `lam` towards the model that was sent."""

    lam: float = 1.0

    @property
    def traits(self) -> Traits:
        """A pull to the start, and a push from there to the model that was sent."""
        return Traits(corrects=self.lam > 0, shifts=self.lam > 0)

    def start(self, task: Task, state: State, params: Tensor) -> Tensor:
        """The client's own model."""
        return state["own"]

    def shift(self, task: Task, state: State, first: Tensor) -> Shift:
        """`lam * (v - w^t)`."""
        return Shift(self.lam, self.lam * (first - task.extras["sent"]))


@dataclass(frozen=True)
class Beside(LocalRule):
    """Plain training of the model that was sent, and next to it of an own one that is pulled to it."""

    lam: float = 1.0

    def __post_init__(self) -> None:
        if self.lam < 0:
            raise BadExperiment(f"lam (Ditto's pull) is {self.lam}; it must not be negative.")

    @property
    def traits(self) -> Traits:
        """Every client has a model of its own."""
        return Traits(personal=True)

    @property
    def twin(self) -> LocalRule:
        """How the own model is trained."""
        return Pulled(self.lam)

    def client_state(self, setting: Setting, model: Tensor) -> State:
        """The initial network, which every client can build."""
        return {"own": flatten(setting.module, setting.layout).to(model)}

    def finish(
        self, task: Task, state: State, first: Tensor, last: Tensor, steps: Tensor
    ) -> tuple[Tensor, State, State]:
        """Send the common model, and keep the own one."""
        return last, {}, {"own": task.extras["own"]}

    def personal(self, setting: Setting, model: Tensor, state: State) -> Tensor | None:
        """The own models."""
        return state["own"]


@paper("Li et al., ICML 2021", 2021, "none: whole models")
def ditto(lam: float = 1.0) -> Method:
    """`lam` weighs the pull of a client's own model towards the common one."""
    return Method(local=Beside(lam), aggregate=CoverageMean("uniform"))
