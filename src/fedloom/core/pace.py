"""The contract of a method's pace: when a step is made, of which replies, and how many clients are asked when."""

from __future__ import annotations

from abc import abstractmethod
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedloom.core.part import ServerPart
from fedloom.core.types import State

if TYPE_CHECKING:
    from fedloom.core.flight import Asked, Flight
    from fedloom.method import Method


class Wish(NamedTuple):
    """How many clients should be asked now."""

    clients: int
    among: NDArray[np.bool_] | None = None  # [N] of these alone; None: of the whole fleet


class Pace(ServerPart):
    """When a step is made. Rounds with a barrier are played by `play_round`, all other paces by `play_step`.

    A pace sees the tasks that no step has taken yet and decides on them alone, so that its answers follow from what a
    checkpoint holds.
    """

    @property
    def barrier(self) -> bool:
        """Whether a cohort is asked, and a step is made when all of it has answered or been given up."""
        return False

    @property
    def slots(self) -> int:
        """At most how many clients are in flight at a time."""
        return 0

    @property
    def goal(self) -> int:
        """How many replies a step usually takes; clients are prepared about as many at a time."""
        return 1

    @property
    def groups(self) -> int:
        """How many groups of clients are asked apart, by their speed."""
        return 1

    @property
    def steps_a_round(self) -> int:
        """How many steps are about the work of a round of ten clients; experiments are as many times as long."""
        return 1 if self.barrier else self.groups * max(1, 10 // self.goal)

    @property
    def one_by_one(self) -> bool:
        """Whether clients are asked between two steps, when others are in flight."""
        return False

    @property
    def holds_rows(self) -> bool:
        """Whether all clients that were sent one version are trained together, and their rows held until needed."""
        return True

    @property
    def lighter(self) -> str | None:
        """What to set so that clients in flight take less memory, if there is such a setting."""
        return None

    @property
    def recall(self) -> bool:
        """Whether a step ends all tasks that it does not take: they no longer count, and their clients are free."""
        return False

    @property
    def timeout(self) -> float | None:
        """Seconds after which somebody else may be asked in place of a client that has not answered; None: never."""
        return None

    @property
    def late(self) -> bool:
        """Whether a reply that comes after its `timeout` counts."""
        return True

    @property
    def oldest(self) -> int | None:
        """The largest staleness of a reply that counts; None: any."""
        return None

    def clash(self, method: Method) -> str | None:
        """Refuse parts that decide on whole cohorts where clients are asked one after another."""
        if self.barrier:
            return None
        if not method.select.asks_one_by_one:
            return (
                f"select={type(method.select).__name__} chooses whole cohorts, not clients that are free; leave pace "
                "out, or take another select."
            )
        for slot in ("select", "allocate", "mask") if self.one_by_one else ():
            part = getattr(method, slot)
            if not part.alone:
                return f"{slot}={type(part).__name__} decides on a whole cohort; set refill='step' (pace.refill=step)."
        return None

    @abstractmethod
    def wish(self, memory: State, flight: Flight, able: NDArray[np.bool_]) -> Wish:
        """How many clients to ask now; called at the start of a step and after every instant until a step is due.

        `able` [N]: False for clients of whom none could be asked now when they were wished for.
        """

    @abstractmethod
    def due(self, memory: State, flight: Flight, quiet: bool) -> list[Asked] | None:
        """Which replies a step takes now, perhaps none; None: no step is due.

        `quiet`: nothing is in flight, and nobody can be asked. Then nothing but an `alarm` can change that.
        """

    def alarm(self, memory: State, flight: Flight) -> float:
        """The second at which to look again even if nothing comes."""
        return inf
