"""Charts as plain numbers and labels, drawn by `plotly_charts` on the page and by `figures` for papers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedloom.core.metric import Metric
from fedloom.report.group import Group

Row = list[float | None]  # None: not known, not drawn


class Band(NamedTuple):
    """Mean, lowest and highest value over seeds."""

    mean: Row
    low: Row
    high: Row


class Line(NamedTuple):
    """The curves of one group."""

    group: Group
    x: dict[str, list[float]]  # by axis; a group without devices has no virtual time
    y: dict[str, Band]  # by measure


class Curves(NamedTuple):
    """Curves whose axes can be chosen."""

    axes: dict[str, str]  # key -> label
    measures: dict[str, str]
    lines: list[Line]
    targets: tuple[float, ...]
    score: Metric  # whose name is a measure; targets are values of it
    shares: tuple[str, ...]  # measures between 0 and 1
    from_zero: bool = False  # whether the scale of measures begins at 0


class Series(NamedTuple):
    """Bars of one colour."""

    label: str
    colour: str
    values: Row
    low: Row | None = None  # whiskers
    high: Row | None = None


class Bars(NamedTuple):
    """Bars next to each other, or stacked and horizontal."""

    categories: list[str]
    series: list[Series]
    unit: str
    stacked: bool = False
    across: str = ""  # label of the category axis
    top: float | None = None  # end of the scale


class Map(NamedTuple):
    """A heat map."""

    z: list[Row]
    x: list[float] | list[str]
    y: list[float] | list[str]


class Maps(NamedTuple):
    """One or several heat maps of one size for each group."""

    by: dict[str, dict[str, Map]]  # group's label -> quantity -> heat map
    scales: dict[str, tuple[str, float | None]]  # quantity -> label of the colours, and their end (None: the largest)
    across: str
    down: str
    square: bool = False
    first: str | None = None  # the group that is shown first


class Strips(NamedTuple):
    """One strip of colours for each layer of each group."""

    by: dict[str, list[tuple[str, int, Row]]]  # group's label -> (layer, neurons, values)
    scale: str


class Ranks(NamedTuple):
    """Distributions: the values of each group, the weakest first."""

    groups: list[tuple[Group, list[float]]]
    unit: str
    across: str
    share: bool = True  # whether values lie between 0 and 1


class Span(NamedTuple):
    """One client's task in a timeline; times in the unit of its lanes."""

    lane: int
    start: float
    phases: tuple[float, float, float]  # lengths of download, training, upload
    taken: float | None  # when a step took the reply; None: none did
    fate: str
    staleness: int
    version: int  # that the client was sent


class Lanes(NamedTuple):
    """A window of a run: clients as lanes, the fastest on top."""

    names: list[str]
    axis: str  # label of the time axis
    unit: str
    start: float
    end: float
    spans: list[Span]
    steps: list[tuple[int, float]]  # number and time of those that are drawn
    oldest: int = 0  # the largest staleness that is drawn of the run

    @property
    def wide(self) -> float:
        """The length of the window."""
        return self.end - self.start


class Timeline(NamedTuple):
    """Who trained when: lanes by group and window."""

    by: dict[str, dict[str, Lanes]]  # group's label -> name of the window -> lanes
    fates: dict[str, tuple[str, str]]  # those that occur, but for counted replies: words and colour


class Axis(NamedTuple):
    """An axis of parallel coordinates, from 0 to 1."""

    name: str
    places: dict[str, float]  # of values
    ticks: list[tuple[float, str]]


class Route(NamedTuple):
    """A line through all axes."""

    places: list[float]
    words: str


class Parallel(NamedTuple):
    """Parallel coordinates; the last axis is what the others lead to, the last path is the best."""

    axes: list[Axis]
    paths: list[Route]


class Parallels(NamedTuple):
    """Parallel coordinates of each method."""

    by: dict[str, Parallel]
    scale: str  # what the last axis is


Chart = Curves | Bars | Maps | Strips | Ranks | Timeline | Parallels


class Cells(NamedTuple):
    """A table: the first column is words, the others are formatted numbers."""

    head: list[str]
    rows: list[list[str]]
    groups: list[Group | None]  # the group of each row, for its colour


def tidy(values: Sequence[float] | np.ndarray, digits: int = 5) -> Row:
    """Values rounded to `digits` significant digits, enough for a chart; None for NaN."""
    return [None if not np.isfinite(value) else float(f"{value:.{digits}g}") for value in np.asarray(values).tolist()]


def merged(notes: list[tuple[str, str]]) -> list[str]:
    """Notes (label, text), with the labels of equal texts joined."""
    texts = dict.fromkeys(text for _, text in notes)
    return [f"{', '.join(label for label, own in notes if own == text)}: {text}" for text in texts]


def spaced(count: int, most: int) -> list[int]:
    """At most `most` of `count` indices, evenly spaced, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(place * (count - 1) / (most - 1)) for place in range(most)})
