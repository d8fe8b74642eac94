"""The timeline: who trained when, what became of it, and how stale each reply was when a step took it."""

from __future__ import annotations

import numpy as np

from fedloom.report.about import CLIENTS as NAMES, name_of
from fedloom.report.charts import Lanes, Span, Timeline, merged, spaced
from fedloom.report.curves import UNITS, unit_of
from fedloom.report.pace import Timed
from fedloom.report.recorded import Numbers, Recorded
from fedloom.report.tasks import COUNTED, FATE_COLOURS, KINDS, Tasks, barrier, speeds_of, word_of

LANES = 24  # clients that are drawn at most
SPANS = 700  # tasks of a window at most
LINES = 60  # steps that are drawn at most
TASKS, STEPS = 8, 4  # a window has at least so many tasks of a typical client, and intervals between steps
WHOLE, BEGIN, END = "whole run", "beginning", "end"
ALIKE = 4  # runs that last so many times less than a window have one of their own
FINE = 4000  # parts of a window to which times are rounded


def timeline_of(groups: Timed) -> tuple[Timeline | None, list[str]]:
    """The timeline of the first seed of each group, and notes."""
    found = [(group, *runs[0]) for group, runs in groups]
    lasts = [float(tasks.taken.max()) for _, _, tasks in found]
    if not min(lasts, default=0.0):
        return None, []
    common = max(_window(run, tasks) for _, run, tasks in found)  # as long for all, so that they can be compared
    wides = [
        _uncrowded(tasks, last, common if ALIKE * last >= common else _window(run, tasks))
        for (_, run, tasks), last in zip(found, lasts)
    ]
    whole = all(wide == last for wide, last in zip(wides, lasts))
    by: dict[str, dict[str, Lanes]] = {}
    notes: list[tuple[str, str]] = []
    for (group, run, tasks), last, wide in zip(found, lasts, wides):
        starts = {WHOLE: 0.0} if whole else {BEGIN: 0.0, END: last - wide}
        windows = {name: _lanes(run, tasks, start, wide) for name, start in starts.items()}
        stale = [span.staleness for lanes, _ in windows.values() for span in lanes.spans if span.fate == COUNTED]
        oldest = max(stale, default=0)
        by[group.label] = {name: lanes._replace(oldest=oldest) for name, (lanes, _) in windows.items()}
        said = dict.fromkeys(note for _, note in windows.values())
        notes.append((group.label, f"seed {run.experiment['seed']}, {'; '.join(said)}."))
    every = [span for windows in by.values() for lanes in windows.values() for span in lanes.spans]
    occur = {span.fate for span in every}
    fates = {fate: (word_of(fate), colour) for fate, colour in FATE_COLOURS.items() if fate in occur}
    return Timeline(by, fates), merged(notes)


def _window(run: Recorded, tasks: Tasks) -> float:
    """Seconds in which a typical client has some tasks, and some steps are made."""
    seconds = tasks.seconds[tasks.seconds > 0]
    lasted = [row["virtual_seconds"] for row in run.rows]
    steps = STEPS * float(np.median(lasted)) if barrier(run) else 0.0
    return max(TASKS * float(np.median(seconds)), steps)


def _uncrowded(tasks: Tasks, last: float, wide: float) -> float:
    """The length of a window of a run that lasts so long: the whole of it if little is left out, less if it is full."""
    wide = last if last <= 1.3 * wide else wide
    while max(_met(tasks, start, wide)[2] for start in (0.0, last - wide)) > SPANS:
        wide /= 2
    return wide


def _met(tasks: Tasks, start: float, wide: float) -> tuple[Tasks, list[int], int]:
    """Tasks in a window, their clients, and how many tasks `LANES` of these have at most."""
    tasks = tasks.at((tasks.end > start) & (tasks.asked < start + wide) & (tasks.seconds > 0))
    clients, counts = np.unique(tasks.client, return_counts=True)
    most = int(np.sort(counts)[-LANES:].sum())
    return tasks, clients.tolist(), most


def _lanes(run: Recorded, tasks: Tasks, start: float, wide: float) -> tuple[Lanes, str]:
    """A window of a run, and what it leaves out."""
    unit, axis = unit_of("time", wide)
    tasks, clients, _ = _met(tasks, start, wide)
    speeds = speeds_of(run, tasks)
    met = sorted(clients, key=lambda client: (speeds.get(client, np.inf), client))
    shown = [met[place] for place in spaced(len(met), LANES)]
    some = tasks.at(np.isin(tasks.client, shown))
    names, lane = run.names(NAMES), {client: place for place, client in enumerate(shown)}
    made = np.cumsum([row["virtual_seconds"] for row in run.rows])
    steps = np.flatnonzero((made >= start) & (made <= start + wide))
    every = -(-len(steps) // LINES) if len(steps) else 1
    drawn = [(int(place) + 1, _fine(made[place], wide, unit)) for place in steps if (place + 1) % every == 0]
    lanes = Lanes(
        [name_of(names, client) for client in shown],
        axis,
        next(word for size, word in UNITS["time"][1] if size == unit),
        _fine(start, wide, unit),
        _fine(start + wide, wide, unit),
        _spans(some, lane, wide, unit),
        drawn,
    )
    said = f"{len(shown)} of the clients at work, evenly spaced by speed" if len(shown) < len(met) else ""
    lines = f"one {'round' if barrier(run) else 'step'} in {every} is drawn" if every > 1 else ""
    return lanes, ", ".join(filter(None, [said, lines])) or "all clients at work"


def _spans(tasks: Tasks, lane: dict[int, int], wide: float, unit: float) -> list[Span]:
    """The tasks as they are drawn."""
    fates = [KINDS[kind] for kind in tasks.kinds().tolist()]

    def fine(values: Numbers) -> list[float]:
        return [_fine(value, wide, unit) for value in values.tolist()]

    start, taken, phases = fine(tasks.asked), fine(tasks.taken), [fine(phase) for phase in tasks.phases]
    return [
        Span(
            lane[int(tasks.client[place])],
            start[place],
            (phases[0][place], phases[1][place], phases[2][place]),
            taken[place] if fates[place] == COUNTED else None,
            fates[place],
            int(tasks.staleness[place]),
            int(tasks.base[place]),
        )
        for place in range(len(fates))
    ]


def _fine(seconds: float, wide: float, unit: float) -> float:
    """A time in the axis's unit, rounded to what can be seen."""
    part = wide / FINE
    return float(f"{round(seconds / part) * part / unit:.6g}")
