"""What did the model and the clients become? Classes, neurons, likeness of clients and their own accuracies."""

from __future__ import annotations

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from fedloom.evaluate.coverage import LOOKS, REPLIES
from fedloom.report.group import Group
from fedloom.report.read import Numbers, as_floats
from fedloom.report.values import Bars, Cells, Map, Maps, Ranks, Row, Series, Strips, merged, spaced, tidy
from fedloom.runs.ledger import PERSONAL

CLASSES = 20  # bars of a group
POINTS = 400  # clients of a distribution
COLUMNS = 128  # colours of a strip
CELLS = 60_000  # of all similarity tables together
DISTANCE = "repair.distance"


def classes_of(groups: list[Group]) -> tuple[Bars | None, list[str]]:
    """Accuracy within each class at the last evaluation."""
    tables = []
    for group in groups:
        last = [next(r["per_class"] for r in reversed(run.scored)) for run in group.runs if run.scored]
        last = [values for values in last if values]
        if last and len({len(values) for values in last}) == 1:
            tables.append((group, np.array([as_floats(values) for values in last])))
    if not tables or len({table.shape[1] for _, table in tables}) > 1:
        return None, []
    means = np.array([table.mean(0) for _, table in tables])
    known = np.flatnonzero(~np.isnan(means).all(0))
    weakest = sorted(known[np.argsort(np.nanmean(means[:, known], 0), kind="stable")][:CLASSES].tolist())
    notes = []
    if len(weakest) < len(known):
        notes.append(f"The {len(weakest)} weakest of {len(known)} classes, by their mean over all runs.")
    series = [
        Series(group.label, group.colour, *(tidy(part[weakest]) for part in (t.mean(0), t.min(0), t.max(0))))
        for group, t in tables
    ]
    return Bars([str(label) for label in weakest], series, "accuracy within the class", across="class", top=1.0), notes


def coverage_of(groups: list[Group]) -> tuple[Strips | None, list[str]]:
    """How much of every neuron arrives with a reply, over all rounds and seeds."""
    by: dict[str, list[tuple[str, int, Row]]] = {}
    notes: list[str] = []
    for group in groups:
        tables = [run.kept for run in group.runs if REPLIES in run.kept and run.kept[REPLIES][0] > 0]
        if not tables:
            continue
        replies = sum(int(kept[REPLIES][0]) for kept in tables)
        strips = []
        for name in [name for name in tables[0] if name.startswith("coverage.") and name != REPLIES]:
            hits = np.sum([kept[name] for kept in tables], axis=0) / (LOOKS * replies)
            each = -(-len(hits) // COLUMNS)
            if each > 1:
                notes.append(f"{group.label}, {name.partition('.')[2]}: a column is the mean of up to {each} neurons.")
            values = [hits[a : a + each].mean() for a in range(0, len(hits), each)]
            strips.append((name.partition(".")[2], len(hits), tidy(np.array(values), 3)))
        by[group.label] = strips
    return (Strips(by, "part that arrives") if by else None), notes


def similarity_of(groups: list[Group]) -> tuple[Maps | None, list[str]]:
    """The distances that SAFARI's server knows between clients' models, alike clients side by side."""
    tables = {}
    for group in groups:
        run = next((run for run in group.runs if _square(run.kept.get(DISTANCE))), None)
        if run is not None:
            tables[group.label] = (run, run.kept[DISTANCE].astype(np.float64))
    by: dict[str, dict[str, Map]] = {}
    notes = []
    for label, (run, table) in tables.items():
        most = int(min(100, (CELLS / len(tables)) ** 0.5))
        some = spaced(len(table), most)
        if len(some) < len(table):
            notes.append(f"{label}: {len(some)} of {len(table)} clients, evenly spaced.")
        table = table[np.ix_(some, some)]
        order = alike(table)
        np.fill_diagonal(table, np.nan)  # itself, at no distance
        names = [str(some[place]) for place in order]
        by[label] = {"distance": Map([tidy(row, 3) for row in table[np.ix_(order, order)]], names, names)}
        notes.append(f"{label}: seed {run.experiment['seed']}.")
    if not by:
        return None, []
    return Maps(by, {"distance": ("distance of the models", None)}, "client", "client", square=True), notes


def _square(table: Numbers | None) -> bool:
    return table is not None and table.ndim == 2 and table.shape[0] == table.shape[1] > 1


def alike(table: Numbers) -> list[int]:
    """An order that puts clients side by side whose models are close; what was never compared counts as far."""
    known = table[np.isfinite(table)]
    filled = np.where(np.isfinite(table), table, known.max() if len(known) else 1.0)
    filled = (filled + filled.T) / 2
    np.fill_diagonal(filled, 0.0)
    if len(table) < 3:
        return list(range(len(table)))
    return [int(place) for place in leaves_list(linkage(squareform(filled, checks=False), "average"))]


def fairness_of(groups: list[Group]) -> tuple[Ranks | None, Cells | None, list[str]]:
    """Every client's accuracy on its own test examples, and how it is spread."""
    found, rows, owners = [], [], []
    notes: list[tuple[str, str]] = []
    for group in groups:
        every = [run.kept[PERSONAL].astype(np.float64) for run in group.runs if PERSONAL in run.kept]
        values = np.concatenate(every) if every else np.zeros(0)
        values = np.sort(values[np.isfinite(values)])
        if not len(values):
            continue
        some = spaced(len(values), POINTS)
        if len(some) < len(values):
            notes.append((group.label, f"{len(some)} of {len(values):,} clients are drawn, evenly spaced by rank."))
        found.append((group, [v or 0.0 for v in tidy(values[some], 4)]))
        tenth = values[: max(1, len(values) // 10)].mean()
        numbers = (values.mean(), np.median(values), tenth, values.std())
        rows.append([group.label, *(f"{number:.3f}" for number in numbers), f"{len(values):,}"])
        owners.append(group)
    if not found:
        return None, None, []
    head = ["", "mean", "median", "lowest tenth", "deviation", "clients × seeds"]
    return (
        Ranks(found, "accuracy on own test examples", "clients, weakest to strongest (%)"),
        Cells(head, rows, list(owners)),
        merged(notes),
    )
