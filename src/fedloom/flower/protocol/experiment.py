"""The experiment in a run config, refused where it asks for what only a simulation has."""

from __future__ import annotations

import json

from fedloom.errors import BadExperiment
from fedloom.runs.experiment import Experiment


def read_experiment(text: str) -> Experiment:
    """The run config's experiment, if a real network can run it."""
    try:
        values = json.loads(text)
        assert isinstance(values, dict)
    except (ValueError, AssertionError, RecursionError) as problem:
        raise BadExperiment("run config: 'experiment' is not an experiment as JSON text.") from problem
    experiment = Experiment(**values)
    if not experiment.build_method().pace.barrier:
        raise BadExperiment(
            f"method '{experiment.method.name}' has rounds without a barrier, which are simulated only; set "
            "pace=barrier, or take another method."
        )
    settings = {name: value for name, value in experiment.world.model_dump().items() if name != "patience"}
    usual = {name: value for name, value in type(experiment.world)().model_dump().items() if name != "patience"}
    simulated = {
        "channel": bool(experiment.channel.settings),
        "world": settings != usual,
        "attack": experiment.attack.name != "none",
        "engine": experiment.engine == "distributed",
    }
    for name, asked in simulated.items():
        if asked:
            raise BadExperiment(f"{name}: it is simulated, and this network is real; leave it out.")
    return experiment
