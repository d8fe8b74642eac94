"""The run, round and attempt that a message belongs to, and the model that it is about."""

from __future__ import annotations

from typing import Any, NamedTuple

from fedloom.codec import Stamp
from fedloom.codec.stamp import Direction
from fedloom.flower.protocol.records import fact

NO_CLIENT = 0  # the client in the stamp of a message to all clients of a node


class RoundId(NamedTuple):
    """Facts of every message of a round."""

    run: str
    round: int
    attempt: int  # how often the server was started for this run
    base: str  # hash of the whole model, of which a client may be sent a part

    @classmethod
    def read(cls, facts: dict[str, Any]) -> RoundId:
        """From a message's facts, checked."""
        found = cls(
            fact(facts, "run", str), fact(facts, "round", int), fact(facts, "attempt", int), fact(facts, "base", str)
        )
        found.stamp(NO_CLIENT, "up")  # raises unless every field fits
        return found

    def stamp(self, client: int, direction: Direction) -> Stamp:
        """The stamp of a client's message."""
        return Stamp(self.run, self.round, client, self.base, self.attempt, direction)
