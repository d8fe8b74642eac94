"""Tiers of a fleet by how long a client takes for the whole model."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.core.clock import full_seconds
from fedloom.core.devices import known_devices
from fedloom.core.types import Setting
from fedloom.core.work import Work
from fedloom.errors import BadExperiment


def tiers_by_speed(setting: Setting, work: Work, tiers: int, who: str) -> Tensor:
    """The tier of each client [N], 0 for the fastest; sizes differ by at most one, and of equals the lower id is first.

    Seconds are of a round of the whole model at the rates that devices have on the average.
    """
    size = setting.fleet.size
    if tiers > size:
        raise BadExperiment(f"tiers is {tiers}, but the fleet has {size} clients; take at most as many tiers.")
    order = full_seconds(setting, known_devices(setting.fleet.devices, who), work).total.argsort(stable=True)
    place = torch.arange(size, device=order.device)
    return torch.empty_like(order).index_copy_(0, order, place * tiers // size)
