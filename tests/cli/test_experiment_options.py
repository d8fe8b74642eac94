"""A command gets the shared options in the place of its parameter `shared`, but for those that it has itself."""

from __future__ import annotations

import inspect
from typing import Any

from fedloom.cli.experiment_options import ExperimentOptions, experiment_options

SHARED = list(inspect.signature(ExperimentOptions).parameters)


def test_options_stand_where_the_parameter_stood():
    called: list[dict[str, Any]] = []

    @experiment_options(without=["exact_bytes"], rounds=5)
    def command(method: str, *, shared: ExperimentOptions, fleet: str, last: int = 1) -> None:
        """A command."""
        called.append(shared.values | {"method": method, "fleet": fleet, "last": last})

    found = inspect.signature(command).parameters
    left = [name for name in SHARED if name not in ("exact_bytes", "fleet")]
    assert list(found) == ["method", *left, "fleet", "last"]
    assert found["rounds"].default == 5
    assert found["data"].default == "digits"
    assert command.__doc__ == "A command."
    values = {name: one.default for name, one in found.items()} | {"method": "fedavg", "fleet": "equal", "seed": 3}
    command(**values)
    assert called[0]["rounds"] == 5
    assert (called[0]["seed"], called[0]["fleet"], called[0]["exact_bytes"]) == (3, "equal", False)


def test_settings_go_on_top():
    experiment = ExperimentOptions(rounds=3, set_=["rounds=4", "rate=0.5"]).experiment(method="fedprox")
    assert (experiment.method.name, experiment.rounds, experiment.training.rate) == ("fedprox", 4, 0.5)
