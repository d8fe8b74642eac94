"""Curves of scores and losses against rounds, virtual time, bytes, energy and wall time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedloom.evaluate.judge import is_share
from fedloom.evaluate.targets import bytes_in
from fedloom.evaluate.wording import label_of
from fedloom.report.about import Scores
from fedloom.report.charts import Band, Curves, Line, spaced, tidy
from fedloom.report.group import Group
from fedloom.report.recorded import as_floats

MOST = 400  # points of a line
PERSONAL = "personal_score"  # a column
SPENT: dict[str, Callable[[dict[str, Any]], float | None]] = {  # axis -> what a round adds to it
    "rounds": lambda row: 1.0,
    "time": lambda row: row["virtual_seconds"],
    "bytes": bytes_in,
    "energy": lambda row: row["joules"],
    "wall": lambda row: None if row["wall_seconds"] is None else row["wall_seconds"] + (row["evaluation_seconds"] or 0),
}
UNITS: dict[str, tuple[str, list[tuple[float, str]]]] = {  # axis -> its name, and units from small to large
    "rounds": ("rounds", []),
    "time": ("virtual time", [(1, "s"), (60, "min"), (3600, "h"), (86400, "days")]),
    "bytes": ("bytes moved, up and down", [(1, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB")]),
    "energy": ("energy", [(1, "J"), (1e3, "kJ"), (1e6, "MJ"), (1e9, "GJ")]),
    "wall": ("wall time", [(1, "s"), (60, "min"), (3600, "h")]),
}


def spent_by(rows: list[dict[str, Any]], axis: str) -> np.ndarray | None:
    """Cumulative cost on an axis after each round; None where it was not recorded."""
    values = as_floats([SPENT[axis](row) for row in rows])
    return None if np.isnan(values).any() else np.cumsum(values)


def unit_of(axis: str, largest: float) -> tuple[float, str]:
    """The unit for an axis that ends at `largest`, and the axis's label."""
    name, units = UNITS[axis]
    fitting = [unit for unit in units if largest >= 2 * unit[0]] or units[:1]
    return (fitting[-1][0], f"{name} ({fitting[-1][1]})") if fitting else (1.0, name)


def largest_unit(axis: str, number: float) -> tuple[float, str]:
    """The largest unit of an axis that is at most `number`; 1 without a name if there is none."""
    return next(((size, word) for size, word in reversed(UNITS[axis][1]) if number >= size), (1.0, ""))


def curves_of(groups: list[Group], targets: tuple[float, ...]) -> tuple[Curves, list[str]]:
    """One line per group, by round over its seeds, and notes."""
    notes: list[str] = []
    raw = [(group, *_line(group, notes)) for group in groups]
    score = groups[0].scores.score
    raw = [(group, x, y) for group, x, y in raw if score.name in y]
    axes, scale = {}, {}
    for axis in SPENT:
        ends = [x[axis][-1] for _, x, _ in raw if axis in x]
        if ends and max(ends) > 0:
            scale[axis], axes[axis] = unit_of(axis, max(ends))
            lacking = [group.label for group, x, _ in raw if axis not in x]
            if lacking:
                notes.append(f"no {UNITS[axis][0]} was simulated for {', '.join(lacking)}.")
    if any("asked" in run.clients for group in groups for run in group.runs) and "time" in axes:
        axes = {"time": axes["time"], **axes}  # steps of different paces are not alike
    lines = [
        Line(group, {a: [v or 0.0 for v in tidy(x[a] / scale[a])] for a in axes if a in x}, y) for group, x, y in raw
    ]
    every = {key: name for group in groups for key, name in measures_of(group.scores).items()}
    measures = {key: name for key, name in every.items() if any(key in line.y for line in lines)}
    shares = [one.name for group in groups for one in group.scores.every if is_share(one)]
    shares += [PERSONAL] if is_share(groups[0].scores.personal) else []
    return Curves(axes, measures, lines, targets, score, tuple(key for key in measures if key in shares)), notes


def measures_of(scores: Scores) -> dict[str, str]:
    """Columns that are drawn, the score first, with their names."""
    own = {metric.name: label_of(metric) for metric in scores.every}
    return {
        **own,
        PERSONAL: f"clients' own {label_of(scores.personal)}",
        "loss": "test loss",
        "training_loss": "training loss",
    }


def _line(group: Group, notes: list[str]) -> tuple[dict[str, np.ndarray], dict[str, Band]]:
    """Means over seeds of costs and measures, at the rounds that every seed has evaluated."""
    runs = [run for run in group.runs if run.scored]
    if not runs:
        return {}, {}
    common = sorted(set.intersection(*({row["round"] for row in run.scored} for run in runs)))
    last = max(run.scored[-1]["round"] for run in runs)
    if not common:
        notes.append(f"{group.label}: its seeds have no evaluated round in common.")
        return {}, {}
    if common[-1] < last:
        notes.append(f"{group.label} is drawn up to round {common[-1]}, the last that all its seeds have.")
    shown = [common[place] for place in spaced(len(common), MOST)]
    if len(shown) < len(common):
        notes.append(f"{group.label}: {len(shown)} of {len(common)} evaluated rounds are drawn, evenly spaced.")
    x: dict[str, np.ndarray] = {}
    for axis in SPENT:
        spent = [spent_by(run.rows, axis) for run in runs]
        at = [{row["round"]: place for place, row in enumerate(run.rows)} for run in runs]
        if all(one is not None for one in spent):
            every = [[one[place[number]] for number in shown] for one, place in zip(spent, at)]  # type: ignore[index]
            x[axis] = np.mean(every, axis=0)
    y: dict[str, Band] = {}
    for measure in measures_of(group.scores):
        column = "score" if measure == group.scores.score.name else measure
        found = [{row["round"]: row.get(column) for row in run.rows} for run in runs]
        table = np.array([as_floats([one.get(number) for number in shown]) for one in found])
        if not np.isnan(table).all():
            y[measure] = Band(tidy(table.mean(0)), tidy(table.min(0)), tidy(table.max(0)))
    return x, y
