"""Charts of the models: accuracy within classes, neurons that arrive, distances between clients' models."""

from __future__ import annotations

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from fedloom.evaluate.coverage import LOOKS, REPLIES
from fedloom.report.about import CLASSES as NAMES, CLIENTS, PER_CLASS, name_of
from fedloom.report.charts import Bars, Map, Maps, Row, Series, Strips, spaced, tidy
from fedloom.report.group import Group
from fedloom.report.recorded import Numbers, as_floats

CLASSES = 20  # bars of a group at most
COLUMNS = 128  # colours of a strip at most
CELLS = 60_000  # of all distance tables together
DISTANCE = "repair.distance"


def classes_of(groups: list[Group]) -> tuple[Bars | None, list[str]]:
    """Accuracy within each class at the last evaluation, and notes."""
    tables = []
    for group in groups:
        found = [run.scored[-1].get(PER_CLASS) for run in group.runs if run.scored]
        last = [values for values in found if values]
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
    names = next((names for group in groups if (names := group.runs[0].names(NAMES))), [])
    categories = [name_of(names, place) for place in weakest]
    return Bars(categories, series, "accuracy within the class", across="class", top=1.0), notes


def coverage_of(groups: list[Group]) -> tuple[Strips | None, list[str]]:
    """The part of each neuron that arrives with a reply, over all rounds and seeds, and notes."""
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
                notes.append(
                    f"{group.label}, {name.partition('.')[2]}: a column is the mean of at most {each} neurons."
                )
            values = [hits[a : a + each].mean() for a in range(0, len(hits), each)]
            strips.append((name.partition(".")[2], len(hits), tidy(np.array(values), 3)))
        by[group.label] = strips
    return (Strips(by, "part that arrives") if by else None), notes


def similarity_of(groups: list[Group]) -> tuple[Maps | None, list[str]]:
    """The distances between clients' models that SAFARI's server computes, close clients next to each other."""
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
        order = order_of(table)
        np.fill_diagonal(table, np.nan)  # a client's distance to itself
        clients = run.names(CLIENTS)
        names = [name_of(clients, some[place]) for place in order]
        by[label] = {"distance": Map([tidy(row, 3) for row in table[np.ix_(order, order)]], names, names)}
        notes.append(f"{label}: seed {run.experiment['seed']}.")
    if not by:
        return None, []
    return Maps(by, {"distance": ("distance of the models", None)}, "client", "client", square=True), notes


def _square(table: Numbers | None) -> bool:
    return table is not None and table.ndim == 2 and table.shape[0] == table.shape[1] > 1


def order_of(table: Numbers) -> list[int]:
    """An order that puts clients with close models next to each other; pairs never compared count as far."""
    known = table[np.isfinite(table)]
    filled = np.where(np.isfinite(table), table, known.max() if len(known) else 1.0)
    filled = (filled + filled.T) / 2
    np.fill_diagonal(filled, 0.0)
    if len(table) < 3:
        return list(range(len(table)))
    return [int(place) for place in leaves_list(linkage(squareform(filled, checks=False), "average"))]
