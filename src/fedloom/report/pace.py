"""Charts of runs in time: clients at work, staleness, work that did not count, and who made the steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedloom.core.metric import ANY
from fedloom.evaluate.judge import MetricFacts
from fedloom.evaluate.targets import interval
from fedloom.report.charts import Band, Bars, Cells, Curves, Line, Series, spaced, tidy
from fedloom.report.curves import MOST, unit_of
from fedloom.report.group import Group
from fedloom.report.recorded import Numbers, Recorded, as_floats
from fedloom.report.tables import amount
from fedloom.report.tasks import (
    COUNTED,
    FATE_COLOURS,
    FLYING,
    KINDS,
    Tasks,
    barrier,
    colour_of,
    speeds_of,
    tasks_of,
    word_of,
)

Timed = list[tuple[Group, list[tuple[Recorded, Tasks]]]]  # groups with those runs whose tasks took time
BUSY = "in_flight"
MEASURES = {BUSY: "clients at work", "waiting": "replies that wait", "staleness": "staleness, mean of a step",
            "versions": "versions of the model kept"}  # fmt: skip
ALONE = 30  # values of staleness with a bar of their own
TENTHS = 10


def timed(groups: list[Group]) -> Timed:
    """The groups and runs whose tasks took time."""
    found = [(group, [(run, tasks_of(run)) for run in group.runs]) for group in groups]
    some = [(group, [(run, tasks) for run, tasks in runs if tasks is not None]) for group, runs in found]
    return [(group, runs) for group, runs in some if any(tasks.seconds.any() for _, tasks in runs)]


def busy_of(groups: Timed) -> Curves | None:
    """Clients at work, replies that wait, staleness and versions, against virtual time and rounds."""
    raw = [(group, *_line([_intervals(*run) for run in runs])) for group, runs in groups]
    ends = [x["time"][-1] for _, x, _ in raw]
    if not ends:
        return None
    scale, label = unit_of("time", max(ends))
    units = {"time": scale, "rounds": 1.0}
    lines = [
        Line(group, {axis: [v or 0.0 for v in tidy(x[axis] / units[axis])] for axis in units}, y) for group, x, y in raw
    ]
    measures = {key: words for key, words in MEASURES.items() if any(key in line.y for line in lines)}
    return Curves({"time": label, "rounds": "rounds"}, measures, lines, (), MetricFacts(BUSY, "high", ANY), (), True)


def _intervals(run: Recorded, tasks: Tasks) -> dict[str, Numbers]:
    """Columns with an entry per interval between two steps; quantities are sums over its seconds."""
    rows = run.rows
    lasted = as_floats([row["virtual_seconds"] for row in rows])
    found: dict[str, Numbers] = {"lasted": lasted}
    if barrier(run):
        step = tasks.step - 1
        waited = np.where(tasks.counted, np.maximum(0.0, tasks.taken - tasks.end), 0.0)
        found[BUSY] = np.bincount(step, weights=tasks.seconds, minlength=len(rows))
        found["waiting"] = np.bincount(step, weights=waited, minlength=len(rows))
        return found
    found[BUSY] = _column(rows, "in_flight") * lasted
    found["waiting"] = _column(rows, "waited_seconds")
    found["staleness"] = _column(rows, "staleness_mean")
    found["versions"] = _column(rows, "versions")
    return found


def _column(rows: list[dict[str, Any]], name: str) -> Numbers:
    return as_floats([row.get(name) for row in rows])


def _line(runs: list[dict[str, Numbers]]) -> tuple[dict[str, Numbers], dict[str, Band]]:
    """Ends and means of at most `MOST` stretches of equally many steps, over the steps that all seeds have."""
    steps = min(len(run["lasted"]) for run in runs)
    cuts = np.array([0, *(place + 1 for place in spaced(steps, MOST))])
    begin = cuts[:-1][np.diff(cuts) > 0]
    ends = np.append(begin[1:], steps)
    x = {"rounds": ends.astype(float), "time": np.mean([np.cumsum(run["lasted"])[ends - 1] for run in runs], axis=0)}
    y = {}
    for key in (key for key in MEASURES if key in runs[0]):
        of_time = key in (BUSY, "waiting")
        table = np.array([_means(run[key][:steps], run["lasted"][:steps] if of_time else None, begin) for run in runs])
        y[key] = Band(tidy(table.mean(0)), tidy(table.min(0)), tidy(table.max(0)))
    return x, y


def _means(values: Numbers, seconds: Numbers | None, begin: Numbers) -> Numbers:
    """Means over stretches: of sums over `seconds`, else of values that are known."""
    if seconds is None:
        known = ~np.isnan(values)
        totals, counts = np.add.reduceat(np.where(known, values, 0.0), begin), np.add.reduceat(known * 1.0, begin)
    else:
        totals, counts = np.add.reduceat(values, begin), np.add.reduceat(seconds, begin)
    means: Numbers = np.divide(totals, counts, out=np.full(len(begin), np.nan), where=counts > 0)
    return means


def staleness_of(groups: Timed) -> tuple[Bars | None, Cells | None]:
    """How stale the replies were that counted: shares, and a table."""
    found = [(group, [t.staleness[t.counted] for run, t in runs if not barrier(run)]) for group, runs in groups]
    some = [(group, np.concatenate(parts)) for group, parts in found if sum(map(len, parts))]
    if not some:
        return None, None
    most = max(int(values.max()) for _, values in some)
    wide = -(-(most + 1) // ALONE)  # values of a bar
    places = most // wide + 1
    names = [str(k) if wide == 1 else f"{k * wide}–{k * wide + wide - 1}" for k in range(places)]
    series, rows = [], []
    for group, values in some:
        shares = np.bincount((values // wide).astype(np.int64), minlength=places) / len(values)
        series.append(Series(group.label, group.colour, tidy(shares)))
        numbers = (values.mean(), np.median(values), np.percentile(values, 90), values.max())
        rows.append([group.label, *(f"{value:,.1f}".removesuffix(".0") for value in numbers), f"{len(values):,}"])
    bars = Bars(names, series, "share of the replies that counted", across="staleness (steps)")
    return bars, Cells(["", "mean", "median", "90th percentile", "most", "replies"], rows, [g for g, _ in some])


def work_of(groups: Timed) -> tuple[Bars | None, Cells | None]:
    """What the clients' seconds went into: percentages by fate, and what did not count, as means of a run."""
    if not groups:
        return None, None
    spent = [np.array([_spent(tasks) for _, tasks in runs]) for _, runs in groups]  # [runs, kinds] each
    fates = [COUNTED, *(fate for fate in FATE_COLOURS if any(own[:, KINDS.index(fate)].any() for own in spent))]
    series = [
        Series(word_of(f), colour_of(f), tidy([100 * own[:, KINDS.index(f)].sum() / own.sum() for own in spent]))
        for f in fates
    ]
    rows, open_kinds = [], [KINDS.index(COUNTED), KINDS.index(FLYING)]
    for (group, runs), own in zip(groups, spent):
        vain = np.delete(own, open_kinds, axis=1).sum(1)
        costs = {"seconds": own.sum(1), "vain": vain, "joules": _in_vain(runs, "joules")}
        costs["bytes"] = _in_vain(runs, "bytes_down", "bytes_up")
        cells = {name: interval(values.tolist()) for name, values in costs.items()}
        part = f"{100 * vain.sum() / own.sum():.1f} %"
        rows.append([group.label, amount(cells["seconds"], "seconds"), amount(cells["vain"], "seconds"), part,
                     amount(cells["joules"], "joules"), amount(cells["bytes"], "bytes")])  # fmt: skip
    head = ["", "at work", "did not count", "share", "energy in vain", "bytes in vain"]
    bars = Bars([group.label for group, _ in groups], series, "% of the seconds at work", stacked=True, top=100.0)
    return bars, Cells(head, rows, [group for group, _ in groups])


def _spent(tasks: Tasks) -> Numbers:
    """Seconds at work by what became of the task."""
    return np.bincount(tasks.kinds(), weights=tasks.spent, minlength=len(KINDS))


def _in_vain(runs: list[tuple[Recorded, Tasks]], *names: str) -> Numbers:
    """The sum of some columns over each run's tasks that ended and did not count."""
    every = [run.clients for run, _ in runs]
    return np.array([sum(float(own[name][~own["arrived"]].sum()) for name in names if name in own) for own in every])


def steps_of(groups: Timed) -> Bars | None:
    """The share of the counted replies that comes from each tenth of the fleet, the fastest first."""
    series = []
    tenths = min(TENTHS, *(len(speeds_of(*run)) for _, runs in groups for run in runs)) if groups else 0
    for group, runs in groups:
        shares = []
        for run, tasks in runs:
            order = sorted(speeds := speeds_of(run, tasks), key=lambda client: (speeds[client], client))
            tenth = {client: place * tenths // len(order) for place, client in enumerate(order)}
            own = [tenth[client] for client in tasks.client[tasks.counted].tolist() if client in tenth]
            shares.append(np.bincount(own, minlength=tenths) / max(1, len(own)))
        table = np.array(shares)
        bars = (tidy(part) for part in (table.mean(0), table.min(0), table.max(0)))
        series.append(Series(group.label, group.colour, *bars))
    if tenths < 2:
        return None
    names = ["fastest", *(str(place) for place in range(2, tenths)), "slowest"]
    across = f"{'tenths' if tenths == TENTHS else 'equal parts'} of the fleet by the speed of the device"
    return Bars(names, series, "share of the replies that counted", across=across)
