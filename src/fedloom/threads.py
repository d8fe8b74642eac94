"""How many threads does a run on CPUs use?"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from fedloom.engine.residence import cohort_of
from fedloom.machine import cores
from fedloom.simulation import Simulation

SMALL = 20_000_000  # multiply-adds of a step of all that train at once, about


@contextmanager
def threads_for(worlds: Sequence[Simulation]) -> Iterator[None]:
    """One thread for small work: there several gain nothing, and lose tenfold when anything else runs.

    Else as many as this process has cores for, unless OMP_NUM_THREADS says how many.
    """
    before = torch.get_num_threads()
    if sum(step_of(world) for world in worlds) < SMALL:
        torch.set_num_threads(1)
    elif not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(min(before, cores()))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def step_of(world: Simulation) -> int:
    """Multiply-adds of one step of the whole cohort, about."""
    cohort = cohort_of(world.method, world.setting.fleet.size)
    return world.setting.layout.total * max(1, world.method.work.batch) * cohort
