"""Values to try for a setting: a list, or a range to draw from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any

from fedloom.errors import BadExperiment

WIDE = 10.0  # a range of positive numbers is drawn by the logarithm from this ratio of its ends on
DIGITS = 3  # significant digits of numbers that are drawn
_NUMBER = r"[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})", re.IGNORECASE)


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`: whole ones if both are; by their logarithm if both are positive and far apart."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise BadExperiment(f"range is {self}; expected its lower end first, as in 0.001..0.1.")

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"

    @property
    def whole(self) -> bool:
        """Whether its numbers are whole."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def by_log(self) -> bool:
        """Whether numbers are spread evenly by their logarithm."""
        return self.low > 0 and self.high / self.low >= WIDE

    def at(self, place: float) -> float:
        """The number at a place from 0 (the lower end) to 1."""
        if self.whole:
            return min(int(self.high), int(self._between(place, self.low, self.high + 1)))
        return float(f"{self._between(place, self.low, self.high):.{DIGITS}g}")

    def _between(self, place: float, low: float, high: float) -> float:
        """The number between two ends, before it is rounded."""
        return exp(log(low) + place * log(high / low)) if self.by_log else low + place * (high - low)


Tried = Sequence[Any] | Range
Space = Mapping[str, Tried]


def tried_of(text: str, values: Sequence[Any]) -> Tried:
    """What `KEY=TEXT` means: a range, or the `values` that were read from the text."""
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        return values
    low, high = (float(end) if re.search(r"[.e]", end, re.IGNORECASE) else int(end) for end in found.groups())
    return Range(low, high)


def plain_space(space: Space) -> dict[str, Any]:
    """The space for JSON: lists, and ranges as texts."""
    return {key: str(tried) if isinstance(tried, Range) else list(tried) for key, tried in space.items()}


def read_space(plain: Mapping[str, Any]) -> dict[str, Tried]:
    """What `plain_space` wrote."""
    return {key: tried_of(tried, [tried]) if isinstance(tried, str) else tried for key, tried in plain.items()}
