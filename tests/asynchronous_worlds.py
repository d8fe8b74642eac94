"""The tiny fleet of `worlds` without a barrier between rounds, and the methods that have none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from fedloom.core.devices import Devices
from fedloom.core.flight import Flight
from fedloom.core.types import State
from fedloom.method import Memory, Method
from fedloom.methods.fedasync import fedasync
from fedloom.methods.fedat import fedat
from fedloom.methods.fedbuff import fedbuff
from fedloom.methods.fjord import fjord
from fedloom.step import Step, begin_flight, play_step
from fedloom.world.channel import Bernoulli
from fedloom.world.simulated import Simulated
from fedloom.world.virtual_time import VirtualTime
from fedloom.world.world import World as Around
from world.made import FLEET, Watched, equipped, made, simulated
from worlds import METHODS, ROUNDS, SEED, Run, World, assert_identical, everything, play, small, states_of

ASYNCHRONOUS: list[tuple[str, Callable[[], Method]]] = [  # a new method without a barrier is one line here
    ("fedasync", lambda: small(fedasync(in_flight=5))),
    (
        "fedasync-fjord",
        lambda: small(fedasync(in_flight=4), allocate=fjord().allocate, mask=fjord().mask, local=fjord().local),
    ),
    ("fedbuff", lambda: small(fedbuff(3, 8))),
    ("fedbuff-rate", lambda: small(fedbuff(3, 8, server_rate=0.5))),
    ("fedat", lambda: small(fedat(3, 2))),
    ("fedat-fjord", lambda: small(fedat(3, 2), allocate=fjord().allocate, mask=fjord().mask, local=fjord().local)),
]

LOSSY = Bernoulli(up=0.3, down=0.2)
APART = (
    *("oort", "oort-sampling"),  # a budget
    *("safa", "safa-plain"),  # rounds alone
    "ram-fed-element",  # a decaying rate
    *("prunefl", "fedtiny", "fedtiny-blocks", "fedmef", "fedrts", "feddst"),  # reports in rounds that are everybody's
)
COHORTS = [  # methods whose rounds a pace can be made to equal
    (name, make()) for name, make in METHODS if make().select.asks_one_by_one and name not in APART
]


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


def memory_of(flown: Flown) -> State:
    """The model and all the server remembers, by name, as `everything`; but not what a pace does, and a barrier not."""
    slots = {slot: own for slot, own in flown.memory.items() if slot != "pace"}
    rest = {f"{slot}.{name}": value for slot, own in slots.items() for name, value in own.items()}
    return {"model": flown.steps[-1].model, **rest}


def seconds_of(here: World, method: Method, world: Watched, rounds: int) -> list[float]:
    """The virtual second at the end of every round."""
    found: list[float] = []

    class Noted(Watched):
        def train(self, *given: Any) -> Any:
            reply = super().train(*given)
            found.append(float(self.now))
            return reply

    world.__class__ = Noted
    play(here, method, world, rounds)
    return found


def both(
    method: Method, free: Method, rounds: int = 4, devices: Devices | None = None, **settings: Any
) -> tuple[Run, Flown, list[float]]:
    """Rounds of `method` and steps of `free` in one world; settings of `deadline` and `first` are for rounds alone."""
    here = equipped(devices or made(availability=0.8))
    barrier = {name: settings.pop(name) for name in ("deadline", "first") if name in settings}
    ours = simulated(here, method, **settings, **barrier)
    run = play(here, method, ours, rounds)
    flown = fly(here, free, around(here, free, **settings), rounds)
    ids = list(range(FLEET))
    assert_identical(
        states_of(flown.world.engine, ids, here.model),
        states_of(ours.engine, ids, here.model),  # type: ignore[arg-type]
    )
    return run, flown, seconds_of(here, method, simulated(here, method, **settings, **barrier), rounds)


def assert_same(run: Run, flown: Flown, seconds: list[float]) -> None:
    """Models, memories and virtual seconds to the bit."""
    for model, step in zip(run.models, flown.steps, strict=True):
        assert torch.equal(model, step.model)
    assert_identical(memory_of(flown), everything(run))
    assert flown.seconds == seconds
