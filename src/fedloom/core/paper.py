"""Where a method comes from, as `fedloom list methods` says it: one `@paper(...)` above the function that makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

Maker = TypeVar("Maker", bound=Callable[..., Any])


class Paper(NamedTuple):
    """A method's paper, and what the method's masks govern."""

    source: str  # authors and where it appeared; empty: no paper
    year: int
    mask: str  # which numbers clients are sent, train or send back
    reading: str = ""  # whose reading of the paper it is; empty: the paper's own method

    @property
    def origin(self) -> str:
        """Whether it is the paper's method or a reading of it."""
        if not self.source:
            return "no paper"
        return f"as {self.reading} reads it" if self.reading else "the paper's"


PAPERS: dict[Callable[..., Any], Paper] = {}  # by the function that makes the method


def paper(source: str, year: int, mask: str, reading: str = "") -> Callable[[Maker], Maker]:
    """Say where the method that the decorated function makes comes from."""

    def noted(make: Maker) -> Maker:
        PAPERS[make] = Paper(source, year, mask, reading)
        return make

    return noted
