"""Server settings of an experiment: how far the model goes by what a method's aggregate makes of a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from pydantic import Field

from fedloom.core.section import Section, told
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

    optimiser: Literal["sgd", "adagrad", "adam", "yogi"] | None = Field(
        default=None, description="of the server's step"
    )
    rate: float | None = told("how far the model goes by a round's change", within="above 0")
    momentum: float | None = told("of sgd", within="from 0 to below 1")
    nesterov: bool | None = Field(default=None, description="of sgd: step by the momentum to come")
    beta1: float | None = told("of adam and yogi: decay of the first moment", within="from 0 to below 1")
    beta2: float | None = told("of adam and yogi: decay of the second moment", within="from 0 to below 1")
    tau: float | None = told("of adagrad, adam and yogi: added to the root of the second moment", within="above 0")
    start: float | None = told("of adagrad, adam and yogi: the second moment before the first round")
    correct: Literal["keras", "flower"] | None = Field(default=None, description="of adam: whose correction of bias")
    dense: bool | None = Field(default=None, description="numbers that nobody sent take a step too, by their moments")

    def apply(self, method: Method) -> Method:
        """The method with this step, in place of one of its own, after its aggregate; sgd unless named."""
        given = {name: value for name, value in self.model_dump().items() if value is not None}
        if not given:
            return method
        name, dense = given.pop("optimiser", "sgd"), given.pop("dense", False)
        optimiser = OPTIMISERS[name](**fit(f"server.optimiser '{name}'", OPTIMISERS[name], given))
        return replace(method, aggregate=Stepped(method.aggregate.unstepped, optimiser, dense))
