"""The history of a run that was resumed or rolled back: which saved states are of it, and which it may need again."""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

from fedloom.codec import Rejected
from fedloom.flower.protocol.records import fact
from fedloom.flower.protocol.said import said


class History(NamedTuple):
    """Facts of every message of a round that clients train or are tried in."""

    starts: tuple[tuple[int, int], ...] = ()  # attempt, and the round after which it began
    kept: tuple[int, ...] = ()  # rounds of the server's checkpoints, to which it can go back

    @classmethod
    def read(cls, facts: dict[str, Any]) -> History:
        """From a message's facts, checked."""
        starts, kept = fact(facts, "starts", list), fact(facts, "kept", list)
        try:
            return cls(tuple((int(attempt), int(start)) for attempt, start in starts), tuple(map(int, kept)))
        except (TypeError, ValueError, OverflowError):
            what = said((starts, kept))
            raise Rejected("header", f"the run's history is {what}; expected pairs and lists of numbers.") from None

    def has(self, attempt: int, number: int) -> bool:
        """Whether round `number` of an attempt is part of the run: a later attempt may have begun before that round."""
        return number <= self.start_after(attempt)

    def start_after(self, attempt: int) -> float:
        """The earliest round that a later attempt began after; infinite if there was none."""
        return min((start for later, start in self.starts if later > attempt), default=inf)
