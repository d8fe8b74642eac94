"""Measures of a run: plain functions of its rows; accuracies in per cent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf, isfinite, isnan, nan
from typing import Any, NamedTuple

from fedloom.evaluate.targets import Rows, to_target
from fedloom.studies.recipes.recipe import Measure

LATE = 10  # last evaluations, whose mean is taken where single ones fluctuate


class Run(NamedTuple):
    """A stored run: one row per round, and small tables that the method's parts kept of the last round."""

    rows: Rows
    kept: dict[str, Any]


Runs = dict[tuple[str, int], Run]  # by label and seed


class Span(NamedTuple):
    """A number that lies between two; they are equal where it is known, and the upper one is infinite if "never"."""

    low: float
    high: float

    @property
    def known(self) -> bool:
        """Whether it is one finite number."""
        return self.low == self.high and isfinite(self.low)

    def minus(self, other: Span) -> Span:
        """The difference of two such numbers."""
        return Span(self.low - other.high, self.high - other.low)

    def over(self, other: Span) -> Span:
        """The ratio of two such numbers that are above zero; NaN if the divisor may be zero."""
        return Span(self.low / other.high, self.high / other.low) if other.low > 0 else Span(nan, nan)


def mean_span(spans: Sequence[Span]) -> Span:
    """The mean of several."""
    return Span(sum(one.low for one in spans) / len(spans), sum(one.high for one in spans) / len(spans))


def _known(rows: Rows, name: str) -> list[float]:
    return [row[name] for row in rows if row.get(name) is not None]


def _last(rows: Rows, name: str) -> float:
    known = _known(rows, name)
    return 100 * known[-1] if known else nan


def _changes(values: list[float]) -> float:
    """Mean absolute change from one evaluation to the next, over the second half of them."""
    half = values[len(values) // 2 :]
    return sum(abs(b - a) for a, b in pairwise(half)) / (len(half) - 1) if len(half) > 1 else nan


def _late(rows: Rows) -> float:
    known = _known(rows, "accuracy")[-LATE:]
    return 100 * sum(known) / len(known) if known else nan


def _classes(rows: Rows, labels: tuple[int, ...]) -> float:
    known = _known(rows, "per_class")
    return 100 * sum(known[-1][label] for label in labels) / len(labels) if known else nan  # type: ignore[index]


def _rounds_to(rows: Rows, at: float) -> float:
    cost = to_target(rows, at / 100)
    return inf if cost is None else cost.rounds


def _seconds_to(rows: Rows, at: float) -> float:
    cost = to_target(rows, at / 100)
    return inf if cost is None or cost.seconds is None else cost.seconds


def _seconds(rows: Rows) -> float:
    return float(sum(row["virtual_seconds"] or 0.0 for row in rows))


def _gigabytes_to(rows: Rows, at: float) -> float:
    reached = _rounds_to(rows, at)
    return inf if reached == inf else _gigabytes(rows[: round(reached)])


def _gigabytes(rows: Rows) -> float:
    return float(sum(row["bytes_up"] + row["bytes_down"] for row in rows)) / 1e9


def _own(rows: Rows) -> Rows:
    """The rows, judged by clients' own models."""
    return [{**row, "score": row.get("personal_score", row.get("personal_accuracy"))} for row in rows]


def _same_group(rows: Rows) -> float:
    known = [value for value in _known(rows, "repair.same_group") if not isnan(value)]
    return 100 * sum(known) / len(known) if known else nan


def _separation(kept: dict[str, Any]) -> float:
    """Mean distance of clients of two groups divided by that within a group; the fleet's halves are the groups."""
    table = kept.get("repair.distance")
    if table is None:
        return nan
    half, pairs = len(table) / 2, [(i, j) for i in range(len(table)) for j in range(i)]
    known = [(i, j, table[i][j]) for i, j in pairs if table[i][j] is not None and not isnan(table[i][j])]
    inside = [value for i, j, value in known if (i < half) == (j < half)]
    across = [value for i, j, value in known if (i < half) != (j < half)]
    return sum(across) / len(across) / (sum(inside) / len(inside)) if inside and across else nan


MEASURES: dict[str, Callable[[Run, Measure], float]] = {
    "accuracy": lambda run, m: _last(run.rows, "accuracy"),
    "best": lambda run, m: 100 * max(_known(run.rows, "accuracy"), default=nan),
    "late": lambda run, m: _late(run.rows),
    "top5": lambda run, m: _last(run.rows, "top5"),
    "personal": lambda run, m: _last(run.rows, "personal_accuracy"),
    "classes": lambda run, m: _classes(run.rows, m.labels),
    "swing": lambda run, m: 100 * _changes(_known(run.rows, "accuracy")),
    "loss swing": lambda run, m: _changes(_known(run.rows, "loss")),
    "rounds": lambda run, m: float(len(run.rows)),
    "rounds to": lambda run, m: _rounds_to(run.rows, m.at or 0.0),
    "seconds to": lambda run, m: _seconds_to(run.rows, m.at or 0.0),
    "seconds to own": lambda run, m: _seconds_to(_own(run.rows), m.at or 0.0),
    "seconds": lambda run, m: _seconds(run.rows),
    "gigabytes": lambda run, m: _gigabytes(run.rows),
    "gigabytes to": lambda run, m: _gigabytes_to(run.rows, m.at or 0.0),
    "gigabytes to own": lambda run, m: _gigabytes_to(_own(run.rows), m.at or 0.0),
    "same group": lambda run, m: _same_group(run.rows),
    "separation": lambda run, m: _separation(run.kept),
}
SPENT: dict[str, Callable[[Run], float]] = {  # without reaching a target: "never" is at least this
    "rounds to": lambda run: len(run.rows) + 1.0,
    "seconds to": lambda run: _seconds(run.rows),
    "seconds to own": lambda run: _seconds(run.rows),
    "gigabytes to": lambda run: _gigabytes(run.rows),
    "gigabytes to own": lambda run: _gigabytes(run.rows),
}
UNITS = {
    "swing": "points", "loss swing": "", "rounds": "rounds", "rounds to": "rounds", "separation": "times",
    "seconds": "virtual s", "seconds to": "virtual s", "seconds to own": "virtual s", "away": "points", "fact": "%",
    "gigabytes": "GB", "gigabytes to": "GB", "gigabytes to own": "GB",
}  # fmt: skip


def unit(measure: Measure) -> str:
    """The unit of a measure."""
    return UNITS.get(measure.what, "%")


def measured(runs: Runs, facts: dict[str, float], label: str, seed: int, measure: Measure) -> Span | None:
    """A measure of a run; None if the run does not exist. `away` is the mean distance from the baseline's curve."""
    if label in facts:
        return Span(facts[label], facts[label])
    run = runs.get((label, seed))
    if run is None:
        return None
    if measure.what == "away":
        other = runs.get((measure.baseline or "", seed))
        return None if other is None else _away(run, other)
    value = MEASURES[measure.what](run, measure)
    return Span(SPENT[measure.what](run), inf) if value == inf else Span(value, value)


def _away(run: Run, other: Run) -> Span:
    pairs = list(zip(_known(run.rows, "accuracy"), _known(other.rows, "accuracy")))
    value = 100 * sum(abs(a - b) for a, b in pairs) / len(pairs) if pairs else nan
    return Span(value, value)
