"""Devices, worlds and channels to test on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.costs import Costs
from fedloom.core.devices import Devices
from fedloom.core.types import Reply, Setting, State, Task
from fedloom.method import Method
from fedloom.world.channel import Channel, Delivered
from fedloom.world.fleets import make_devices
from fedloom.world.simulated import Simulated
from fedloom.world.world import World as Around
from worlds import SIZES, World, world

FLEET = len(SIZES)


def made(size: int = FLEET, **columns: list[float] | float) -> Devices:
    """Table 4's devices, with some columns given."""
    drawn = make_devices("table4", size, 3)
    given = {k: torch.tensor(v, dtype=torch.float64).expand(size).clone() for k, v in columns.items()}
    return drawn._replace(**given)


def equipped(devices: Devices | None = None, network: str = "mlp") -> World:
    """The tiny world with devices."""
    here = world(network)
    return here._replace(setting=with_devices(here.setting, made() if devices is None else devices))


def with_devices(setting: Setting, devices: Devices | None) -> Setting:
    """The same setting around other devices."""
    return replace(setting, fleet=setting.fleet._replace(devices=devices))


class Watched(Simulated):
    """A simulated world that shows what its last round cost."""

    costs: Costs
    columns: State  # of the costs

    def train(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """Train, and look at the costs in the reply."""
        reply = super().train(ids, task, chance)
        assert reply.costs is not None
        assert reply.costs.columns is not None
        self.costs, self.columns = reply.costs, reply.costs.columns
        return reply


def simulated(here: World, method: Method, **settings: Any) -> Watched:
    """The local engine in a world of these settings, and what is built for it."""
    built = {name: settings.pop(name) for name in ("channel", "pieces", "trace", "price") if name in settings}
    return Watched(here.local(method), method, here.setting, Around(**settings), **built)


@dataclass(frozen=True)
class Cut(Channel):
    """Loses just what it is told: (round, client) down and up."""

    down: tuple[tuple[int, int], ...] = ()
    up: tuple[tuple[int, int], ...] = ()

    def __call__(self, ids: Tensor, devices: Devices | None, chance: Chance) -> Delivered:
        """By lookup."""

        def through(lost: tuple[tuple[int, int], ...]) -> Tensor:
            return torch.tensor([(chance.round, client) not in lost for client in ids.tolist()])

        return Delivered(through(self.down), through(self.up))
