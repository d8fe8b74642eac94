"""The server's fleet where data are the nodes' own: built from the counts that nodes report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from fedloom.core.types import Fleet
from fedloom.engine.storage.shards import Shards
from fedloom.flower.server.roster import ReportedClient
from fedloom.runs.experiment import Experiment
from fedloom.runs.inputs import Inputs, devices_of


def with_reported_fleet(
    inputs: Inputs, experiment: Experiment, reported: Mapping[int, ReportedClient], tests: bool
) -> Inputs:
    """The inputs with the fleet that nodes report, by client number; `tests`: whether clients have test examples."""
    device, size = inputs.model.device, experiment.clients
    clients = [reported[number] for number in range(size)]
    fleet = Fleet(
        torch.tensor([one.examples for one in clients], device=device),
        torch.tensor([one.labels for one in clients], device=device),
        devices_of(experiment, np.arange(size), device),
    )
    nothing = Shards([torch.empty(0, dtype=torch.int64)] * size, device)
    own_test = (inputs.test, nothing) if tests else None
    setting = replace(inputs.setting, fleet=fleet)
    return inputs._replace(setting=setting, clients=list(range(size)), own_test=own_test)
