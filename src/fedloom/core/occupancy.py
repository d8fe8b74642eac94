"""How slots were used since the last step: seconds in which they were held or empty, and in which replies waited."""

from __future__ import annotations


class Occupancy:
    """Sums over the interval between two steps; a step ends the interval, so nothing outlives it."""

    def __init__(self, slots: int) -> None:
        """`slots`: at most how many tasks are in flight at a time."""
        self.slots = slots
        self._begin()

    def pass_time(self, seconds: float, in_flight: int, waiting: int) -> None:
        """Let time pass in which nothing happens: no task begins or ends, and no reply comes or is taken."""
        self._seconds += seconds
        self._held += in_flight * seconds
        self._empty += (self.slots - in_flight) * seconds
        self._waited += waiting * seconds

    def end_interval(self, in_flight: int) -> dict[str, float]:
        """The columns of a step's row, and a new interval; `in_flight`: tasks now, for an interval of no length."""
        columns = {
            "in_flight": self._held / self._seconds if self._seconds else float(in_flight),
            "waited_seconds": self._waited,
            "idle_seconds": self._empty,
        }
        self._begin()
        return columns

    def _begin(self) -> None:
        """Nothing has been summed yet."""
        self._seconds = self._held = self._empty = self._waited = 0.0
