"""Which round of which run does a message belong to?"""

from __future__ import annotations

from typing import Any, NamedTuple

from fedloom.codec import Stamp
from fedloom.codec.stamp import Direction
from fedloom.flower.protocol.records import fact


class Order(NamedTuple):
    """What stands in the facts of every message of a round."""

    run: str
    round: int
    attempt: int  # how often the server was started for this run
    base: str  # hash of the whole model, of which a client may be sent a part

    @classmethod
    def read(cls, facts: dict[str, Any]) -> Order:
        """From a parcel's facts."""
        order = cls(
            fact(facts, "run", str), fact(facts, "round", int), fact(facts, "attempt", int), fact(facts, "base", str)
        )
        order.stamp(0, "up")  # every field must fit
        return order

    def stamp(self, client: int, direction: Direction) -> Stamp:
        """That of a client's message."""
        return Stamp(self.run, self.round, client, self.base, self.attempt, direction)
