"""The server's fleet where data are the nodes' own: built from the counts that nodes report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from fedloom.core.types import Fleet
from fedloom.engine.storage.shards import Shards
from fedloom.flower.server.roster import ReportedClient
from fedloom.runs.build import Simulation, devices_of
from fedloom.runs.experiment import Experiment


def with_reported_fleet(
    world: Simulation, experiment: Experiment, reported: Mapping[int, ReportedClient], tests: bool
) -> Simulation:
    """The simulation with the fleet that nodes report, by client number; `tests`: whether they have test examples."""
    device, size = world.model.device, experiment.clients
    clients = [reported[number] for number in range(size)]
    fleet = Fleet(
        torch.tensor([one.examples for one in clients], device=device),
        torch.tensor([one.labels for one in clients], device=device),
        devices_of(experiment, np.arange(size), device),
    )
    setting = replace(world.setting, fleet=fleet)
    world.engine.setting = world.wire.setting = setting
    nothing = Shards([torch.empty(0, dtype=torch.int64)] * size, device)
    return world._replace(setting=setting, clients=list(range(size)), own_test=(world.test, nothing) if tests else None)
