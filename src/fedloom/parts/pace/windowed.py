"""Pace: a step is made every few seconds, of the replies that have come by then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedloom.core.flight import ARRIVED, UNAVAILABLE, Asked, Flight
from fedloom.core.pace import Wish
from fedloom.core.types import Setting, State
from fedloom.errors import BadExperiment
from fedloom.parts.pace.in_flight import InFlight


@dataclass(frozen=True)
class Windowed(InFlight):
    """A step every `seconds`, with all that has come, if that is at `least` so many replies; clients begin at steps.

    With `recall`, what is in flight at a step does not count, which is a round with a deadline: it ends sooner when all
    have answered. Replies staler than `oldest` do not count either.
    """

    seconds: float = 60.0
    in_flight: int = 100
    least: int = 1
    recall: bool = False
    timeout: float | None = None
    late: bool = True
    oldest: int | None = None
    hold: Literal["rows", "bases"] = "rows"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.seconds > 0:
            raise BadExperiment(f"seconds (between two steps) is {self.seconds}; expected more than 0.")
        if self.least < 1:
            raise BadExperiment(f"least (replies of a step) is {self.least}; expected at least 1.")

    def init(self, setting: Setting, model: Tensor) -> State:
        """Refuse more replies than the fleet can send."""
        if self.least > setting.fleet.size:
            raise BadExperiment(
                f"least (replies of a step) is {self.least}, and the fleet has {setting.fleet.size} clients, each with "
                "at most one reply in it; make it smaller."
            )
        return {}

    @property
    def goal(self) -> int:
        """As many as are in flight."""
        return self.in_flight

    def wish(self, memory: State, flight: Flight, able: NDArray[np.bool_]) -> Wish:
        """Fill the empty slots after a step."""
        return Wish(0 if flight.refilled else self.in_flight - flight.in_flight)

    def due(self, memory: State, flight: Flight, quiet: bool) -> list[Asked] | None:
        """All that waits, when the time has come."""
        if flight.now < self.alarm(memory, flight) and not self._complete(flight):
            return None
        return list(flight.waiting) if len(flight.waiting) >= self.least else []

    def alarm(self, memory: State, flight: Flight) -> float:
        """The end of the window."""
        return flight.since + self.seconds

    def _complete(self, flight: Flight) -> bool:
        """Whether all who were there have answered, where nobody else is awaited."""
        here = [task for task in flight.tasks.values() if task.fate != UNAVAILABLE]
        return self.recall and bool(here) and all(task.fate == ARRIVED for task in here)
