"""Server settings of an experiment: how far the model goes by what a method's aggregate makes of a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from fedloom.core.section import Section
from fedloom.method import Method
from fedloom.parts.aggregate.server_optimiser import ServerAdagrad, ServerAdam, ServerOptimiser, ServerSgd, ServerYogi
from fedloom.parts.aggregate.stepped import Stepped
from fedloom.runs.settings import fit

OPTIMISERS: dict[str, Callable[..., ServerOptimiser]] = {
    "sgd": ServerSgd,
    "adagrad": ServerAdagrad,
    "adam": ServerAdam,
    "yogi": ServerYogi,
}


class Server(Section):
    """The server's own step; None leaves a setting to its optimiser, and all of them leave the method as it is."""

    optimiser: Literal["sgd", "adagrad", "adam", "yogi"] | None = None
    rate: float | None = None
    momentum: float | None = None
    nesterov: bool | None = None
    beta1: float | None = None
    beta2: float | None = None
    tau: float | None = None
    start: float | None = None
    correct: Literal["keras", "flower"] | None = None
    dense: bool | None = None

    def apply(self, method: Method) -> Method:
        """The method with this step, in place of one of its own, after its aggregate; sgd unless named."""
        given = {name: value for name, value in self.model_dump().items() if value is not None}
        if not given:
            return method
        name, dense = given.pop("optimiser", "sgd"), given.pop("dense", False)
        optimiser = OPTIMISERS[name](**fit(f"server.optimiser '{name}'", OPTIMISERS[name], given))
        return replace(method, aggregate=Stepped(method.aggregate.unstepped, optimiser, dense))
