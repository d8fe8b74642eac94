"""What is drawn? Plain numbers with their words, the same for the page and for paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedloom.report.group import Group

Row = list[float | None]  # None: nothing is known, and nothing is drawn


class Band(NamedTuple):
    """A mean over seeds, with the lowest and the highest."""

    mean: Row
    low: Row
    high: Row


class Line(NamedTuple):
    """One group's course."""

    group: Group
    x: dict[str, list[float]]  # by axis; a group without devices has no virtual time
    y: dict[str, Band]  # by measure


class Curves(NamedTuple):
    """Courses whose axes can be chosen."""

    axes: dict[str, str]  # key -> label
    measures: dict[str, str]
    lines: list[Line]
    targets: tuple[float, ...]


class Series(NamedTuple):
    """Bars of one colour."""

    label: str
    colour: str
    values: Row
    low: Row | None = None  # whiskers
    high: Row | None = None


class Bars(NamedTuple):
    """Bars side by side, or stacked and lying down."""

    categories: list[str]
    series: list[Series]
    unit: str
    stacked: bool = False
    across: str = ""  # what the categories are
    top: float | None = None  # where the scale ends


class Map(NamedTuple):
    """A table of numbers as colours."""

    z: list[Row]
    x: list[float] | list[str]
    y: list[float] | list[str]


class Maps(NamedTuple):
    """Of every group, one or several tables of the same size."""

    by: dict[str, dict[str, Map]]  # group's label -> what -> table
    scales: dict[
        str, tuple[str, float | None]
    ]  # what -> what the colours say, and where they end (None: at the largest)
    across: str
    down: str
    square: bool = False
    first: str | None = None  # the group to begin with


class Strips(NamedTuple):
    """Of every group, one strip of colours for each layer."""

    by: dict[str, list[tuple[str, int, Row]]]  # group's label -> (layer, neurons, values)
    scale: str


class Ranks(NamedTuple):
    """Distributions: of every group its values from the lowest to the highest."""

    groups: list[tuple[Group, list[float]]]
    unit: str
    across: str


Value = Curves | Bars | Maps | Strips | Ranks


class Cells(NamedTuple):
    """A table: the first column is words, the others are numbers as text."""

    head: list[str]
    rows: list[list[str]]
    groups: list[Group | None]  # whose row it is, for its colour


def tidy(values: Sequence[float] | np.ndarray, digits: int = 5) -> Row:
    """So many significant digits, which is all that a picture shows; None for NaN."""
    return [None if not np.isfinite(value) else float(f"{value:.{digits}g}") for value in np.asarray(values).tolist()]


def merged(said: list[tuple[str, str]]) -> list[str]:
    """What is said of several groups (label, text), once."""
    texts = dict.fromkeys(text for _, text in said)
    return [f"{', '.join(label for label, own in said if own == text)}: {text}" for text in texts]


def spaced(count: int, most: int) -> list[int]:
    """At most `most` of so many places, evenly spaced, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(place * (count - 1) / (most - 1)) for place in range(most)})
