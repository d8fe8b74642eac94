"""Training settings of an experiment, which replace the method's own."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Literal

from pydantic import Field

from fedloom.core.optimiser import Adam, Optimiser, Sgd
from fedloom.core.section import Section
from fedloom.errors import BadExperiment, unknown
from fedloom.method import Method
from fedloom.methods.fedspu import stopping_early


class Training(Section):
    """How clients train; None leaves a setting to the method."""

    optimiser: Literal["sgd", "adam"] | None = None
    rate: float | None = None
    decay: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    clip: float | None = None
    fresh: bool | None = None
    epochs: int | None = None
    steps: int | None = None
    batch: int | None = None
    stop_early: float | None = Field(
        default=None,
        description="clients leave once this part of training loss and the rest of held-out loss rises: 0.7",
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
