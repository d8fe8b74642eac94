"""The common half of paces that keep a number of clients in flight."""

from __future__ import annotations

from typing import Literal

from fedloom.core.pace import Pace
from fedloom.core.types import Setting
from fedloom.errors import BadExperiment, unknown

HOLDS = ("rows", "bases")


class InFlight(Pace):
    """A pace with fields: `in_flight` clients at a time, and how long they are awaited.

    After `timeout` seconds somebody else is asked in place of a client that has not answered; its reply still counts
    if it comes, unless `late` is off. What `hold` keeps in memory for clients in flight: the `rows` of all that were
    sent one version, trained together, or the `bases` alone, so that clients are trained when their replies are taken.
    """

    in_flight: int
    hold: Literal["rows", "bases"]

    def __post_init__(self) -> None:
        if self.in_flight < 1:
            raise BadExperiment(f"in_flight (clients at a time) is {self.in_flight}; expected at least 1.")
        if self.timeout is not None and not self.timeout > 0:
            raise BadExperiment(f"timeout (seconds) is {self.timeout}; expected more than 0, or none.")
        if self.oldest is not None and self.oldest < 0:
            raise BadExperiment(f"oldest (staleness that counts) is {self.oldest}; expected 0 or more, or none.")
        if self.hold not in HOLDS:
            raise BadExperiment(unknown("hold (what is kept for clients in flight)", self.hold, HOLDS))

    @property
    def slots(self) -> int:
        """Clients in flight."""
        return self.in_flight

    @property
    def holds_rows(self) -> bool:
        """Unless memory is short."""
        return self.hold == "rows"

    @property
    def lighter(self) -> str | None:
        """To hold no rows."""
        if self.hold == "bases":
            return None
        return "set pace.hold=bases, so that clients train when their replies are taken and nothing waits"

    def note(self, setting: Setting) -> str | None:
        """A fleet that is smaller than the number of clients in flight."""
        size = setting.fleet.size
        return None if self.in_flight <= size else f"in_flight is {self.in_flight}; the fleet has {size}, so all are."
