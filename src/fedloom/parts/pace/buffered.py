"""Pace: a step is made of the first few replies that come, while others train on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedloom.core.flight import Asked, Flight
from fedloom.core.pace import Wish
from fedloom.core.types import Setting, State
from fedloom.errors import BadExperiment, unknown
from fedloom.parts.pace.in_flight import InFlight

TOO_OLD = ("drop", "wait")
REFILLS = ("arrival", "step")


@dataclass(frozen=True)
class Buffered(InFlight):
    """A step of every `buffer` replies, while `in_flight` clients train (FedBuff; with a buffer of 1, FedAsync).

    `refill`: somebody else is asked in place of a client on `arrival` of its reply, or only after a `step`. With
    `recall`, what is in flight when a step is made does not count, and its client may be asked again at once. Replies
    that would be staler than `oldest` are dropped, or awaited before further steps are made (`too_old="wait"`) and
    then taken first. A step takes fewer replies if no more can come. Replies that wait are taken in the order in which
    they came.
    """

    buffer: int = 10
    in_flight: int = 100
    refill: Literal["arrival", "step"] = "arrival"
    recall: bool = False
    timeout: float | None = None
    late: bool = True
    oldest: int | None = None
    too_old: Literal["drop", "wait"] = "drop"
    hold: Literal["rows", "bases"] = "rows"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buffer < 1:
            raise BadExperiment(f"buffer (replies a step takes) is {self.buffer}; expected at least 1.")
        if self.refill not in REFILLS:
            raise BadExperiment(unknown("refill (when others are asked)", self.refill, REFILLS))
        if self.too_old not in TOO_OLD:
            raise BadExperiment(unknown("too_old (what is done about replies above oldest)", self.too_old, TOO_OLD))
        if self.too_old == "wait" and self.oldest is not None and self.timeout is None:
            raise BadExperiment(
                "too_old is 'wait' without a timeout, and a lost reply would be awaited for ever; set it."
            )

    @property
    def goal(self) -> int:
        """The buffer."""
        return self.buffer

    @property
    def one_by_one(self) -> bool:
        """On arrival, clients are asked while others are in flight."""
        return self.refill == "arrival"

    def init(self, setting: Setting, model: Tensor) -> State:
        """Refuse a buffer that the fleet cannot fill."""
        if self.buffer > setting.fleet.size:
            raise BadExperiment(
                f"buffer (replies a step takes) is {self.buffer}, and the fleet has {setting.fleet.size} clients, each "
                "with at most one reply in it; make it smaller."
            )
        return {}

    def wish(self, memory: State, flight: Flight, able: NDArray[np.bool_]) -> Wish:
        """Fill the empty slots; those of a step at once, or all while they are empty."""
        if self.refill == "step" and flight.refilled:
            return Wish(0)
        return Wish(self.in_flight - flight.in_flight)

    def due(self, memory: State, flight: Flight, quiet: bool) -> list[Asked] | None:
        """The first replies that came, as soon as they fill the buffer, or all if no more can come."""
        if len(flight.waiting) < self.buffer and not quiet and not self._complete(flight):
            return None
        if not quiet and self.too_old == "wait" and self._awaits(flight):
            return None
        return self._first(flight)

    def _first(self, flight: Flight) -> list[Asked]:
        """The replies that came first; if none may become too old, those that would before all others."""
        if self.too_old == "drop" or self.oldest is None:
            return flight.waiting[: self.buffer]
        now = [task for task in flight.waiting if flight.staleness(task) == self.oldest]
        others = [task for task in flight.waiting if flight.staleness(task) < self.oldest]
        return [*now, *others[: max(0, self.buffer - len(now))]]

    def _complete(self, flight: Flight) -> bool:
        """Whether nobody is in flight and nobody will be asked before a step."""
        return self.refill == "step" and flight.refilled and all(task.ended for task in flight.tasks.values())

    def _awaits(self, flight: Flight) -> bool:
        """Whether a step would make somebody's reply too old."""
        return any(not t.ended and flight.staleness(t) == self.oldest for t in flight.tasks.values())
