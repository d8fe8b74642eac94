"""Training settings of an experiment, which replace the method's own."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Literal

from pydantic import Field

from fedloom.core.optimiser import Adam, Optimiser, Sgd
from fedloom.core.section import Section, told
from fedloom.errors import BadExperiment, unknown
from fedloom.method import Method
from fedloom.methods.fedspu import stopping_early


class Training(Section):
    """How clients train; None leaves a setting to the method."""

    optimiser: Literal["sgd", "adam"] | None = Field(default=None, description="how a step follows from a gradient")
    rate: float | None = told("learning rate of clients", within="above 0")
    decay: float | None = told("factor of the rate from one round to the next", within="above 0, at most 1")
    momentum: float | None = told("of SGD: heavy-ball momentum", within="from 0 to below 1")
    weight_decay: float | None = told("part of the weights that is added to the gradient", within="at least 0")
    clip: float | None = told("bound of a gradient's norm", within="above 0")
    fresh: bool | None = Field(
        default=None, description="moments begin at zero in every round; false keeps them on the client"
    )
    epochs: int | None = told("passes over a client's examples in a round", "passes", "at least 1")
    steps: int | None = told("steps of a client in a round, in place of epochs", "steps", "at least 1")
    batch: int | None = told("examples of a step; 0 takes all at once", "examples", "at least 0")
    stop_early: float | None = told(
        "clients leave once this part of training loss and the rest of held-out loss rises: 0.7", within="from 0 to 1"
    )

    def apply(self, method: Method) -> Method:
        """The method with these settings in place of its own."""
        given = {name: value for name, value in self.model_dump().items() if value is not None}
        balance = given.pop("stop_early", None)
        kinds: dict[str, type[Optimiser]] = {"sgd": Sgd, "adam": Adam}
        kind = kinds.get(given.pop("optimiser", ""), type(method.optimiser))
        work = {name: given.pop(name) for name in ("epochs", "steps", "batch") if name in given}
        if "epochs" in work:
            work.setdefault("steps", None)  # in case the method sets steps
        takes = [f.name for f in fields(kind)]
        for name in given:
            if name not in takes:
                raise BadExperiment(unknown(f"setting of {kind.__name__.lower()}", name, takes))
        optimiser = replace(method.optimiser, **given) if kind is type(method.optimiser) else kind(**given)
        trained = replace(method, optimiser=optimiser, work=replace(method.work, **work))
        return trained if balance is None else stopping_early(trained, balance)
