"""Notes on what a run takes for granted: its fleet, its cohort, its batches, and who is tested."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fedloom.core.devices import Devices
from fedloom.data.dataset import Dataset
from fedloom.method import Method
from fedloom.runs.experiment import Experiment


def assumption_notes(experiment: Experiment, method: Method, devices: Devices | None, clients: int) -> list[str]:
    """What is assumed of devices, and settings that mean something else than they seem to."""
    found = [] if devices is None else [fleet_note(experiment.fleet.name, devices)]
    if experiment.per_round is not None and experiment.per_round > clients:
        found.append(
            f"per_round is {experiment.per_round}, and {clients} clients have examples: every round asks all of them."
        )
    if method.work.batch == 0:
        found.append("batch is 0: a step takes all of a client's examples at once.")
    return found


def fleet_note(name: str, devices: Devices) -> str:
    """What a fleet assumes of its devices: how often they are there, their links and their speed."""
    there, arrives = (100 * column for column in (devices.availability, devices.reliability))
    parts = [
        f"clients are there {_span(there)} % of the time",
        f"{_span(devices.up / 1e6)} Mbit/s up",
        f"{_span(devices.down / 1e6)} Mbit/s down",
        f"{_span(devices.flops / 1e9)} GFLOP/s",
    ]
    parts += [f"a message arrives in {_span(arrives)} % of cases"] if float(devices.reliability.min()) < 1 else []
    return f"fleet '{name}' assumes: {', '.join(parts)}."


def stranger_notes(experiment: Experiment, data: Dataset, tested: bool) -> tuple[str, ...]:
    """A note where no client is in the test set, so that clients have no score of their own."""
    if tested or data.client_train is None or data.client_test is None or experiment.split[2] > 0:
        return ()
    if np.isin(data.client_test, data.client_train).any():  # clients were dealt otherwise than the data say
        return ()
    return (
        "no client of the run is in the test set, whose examples are strangers', so that clients have no score of "
        "their own; split=[0.8,0,0.2] keeps a fifth of each client's examples for that.",
    )


def _span(values: Tensor) -> str:
    """The mean of values, with the lowest and the highest where they differ."""
    low, mean, high = (float(value) for value in (values.min(), values.double().mean(), values.max()))
    return f"{mean:.3g}" if low == high else f"{mean:.3g} ({low:.3g} to {high:.3g})"
