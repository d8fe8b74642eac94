"""How many threads does a run on CPUs use?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from fedloom.select.everyone import SomeSend
from fedloom.simulation import Simulation

SMALL = 20_000_000  # multiply-adds of a step of all that train at once, about


@contextmanager
def threads_for(worlds: Sequence[Simulation]) -> Iterator[None]:
    """One thread for small work: there several gain nothing, and lose tenfold when anything else runs."""
    before = torch.get_num_threads()
    if sum(step_of(world) for world in worlds) < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def step_of(world: Simulation) -> int:
    """Multiply-adds of one step of the whole cohort, about."""
    select, cohort = world.method.select, world.setting.fleet.size
    if not isinstance(select, SomeSend):  # under which all train
        cohort = getattr(select, "count", None) or cohort
    return world.setting.layout.total * max(1, world.method.work.batch) * cohort
