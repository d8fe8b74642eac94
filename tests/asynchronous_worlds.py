"""The tiny fleet of `worlds` without a barrier between rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from fedloom.core.flight import Flight
from fedloom.method import Memory, Method
from fedloom.step import Step, begin_flight, play_step
from fedloom.world.simulated import Simulated
from fedloom.world.virtual_time import VirtualTime
from fedloom.world.world import World as Around
from worlds import ROUNDS, SEED, World


class Flown(NamedTuple):
    """What some steps left behind."""

    steps: list[Step]
    seconds: list[float]  # virtual, at the end of each step
    flight: Flight
    world: Simulated

    @property
    def memory(self) -> Memory:
        """After the last step."""
        return self.steps[-1].memory


def around(here: World, method: Method, loop: bool = False, **settings: Any) -> Simulated:
    """An engine in a world of these settings, and what is built for it."""
    built = {name: settings.pop(name) for name in ("channel", "pieces", "trace", "price") if name in settings}
    engine = here.loop(method) if loop else here.local(method)
    return Simulated(engine, method, here.setting, Around(**settings), **built)


def fly(here: World, method: Method, around: Simulated | VirtualTime, steps: int = ROUNDS, seed: int = SEED) -> Flown:
    """Some steps from the start."""
    flight, memory = begin_flight(method, here.setting, here.model), method.init(here.setting, here.model)
    made: list[Step] = []
    world = VirtualTime(around) if isinstance(around, Simulated) else around
    seconds = []
    for _ in range(steps):
        made.append(play_step(method, memory, flight, here.setting, world, seed))
        memory = made[-1].memory
        seconds.append(flight.now)
    return Flown(made, seconds, flight, world.simulated)


def paced(methods: Sequence[tuple[str, Any]], names: Sequence[str], **changes: Any) -> list[tuple[str, Method]]:
    """Some methods of the list by name, changed."""
    known = dict(methods)
    return [(name, replace(known[name](), **changes)) for name in names]
