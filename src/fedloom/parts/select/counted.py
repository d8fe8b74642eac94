"""The common half of parts that choose a fixed number of clients a round."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from fedloom.core.part import Select
from fedloom.errors import BadExperiment


class Counted(Select):
    """A part whose field `count` is how many clients it chooses a round; fewer if the fleet is smaller."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise BadExperiment(f"count of clients a round is {self.count}; at least 1 must take part.")

    def cohort_size(self, fleet_size: int) -> int:
        """`count`, or the whole fleet if that is smaller."""
        return min(self.count, fleet_size)

    def with_count(self, count: int) -> Self:
        """This part with another `count`."""
        return replace(self, count=count)  # type: ignore[type-var]  # every leaf is a dataclass
