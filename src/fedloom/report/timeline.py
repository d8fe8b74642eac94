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
    if not found:
        return None, []
    wide = max(_window(run, tasks) for _, run, tasks in found)
    lasts = {group.label: float(tasks.taken.max()) for group, _, tasks in found}
    short = max(lasts.values()) <= 1.3 * wide
    if short:
        wide = max(lasts.values())
    by: dict[str, dict[str, Lanes]] = {}
    notes: list[tuple[str, str]] = []
    for group, run, tasks in found:
        own = wide if ALIKE * lasts[group.label] >= wide else min(_window(run, tasks), lasts[group.label])
        starts = {WHOLE: 0.0} if short else {BEGIN: 0.0, END: max(0.0, lasts[group.label] - own)}
        windows = {name: _lanes(run, tasks, start, own) for name, start in starts.items()}
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


def _lanes(run: Recorded, tasks: Tasks, start: float, wide: float) -> tuple[Lanes, str]:
    """A window of a run, and what it leaves out."""
    unit, axis = unit_of("time", wide)
    inside = (tasks.end > start) & (tasks.asked < start + wide) & (tasks.seconds > 0)
    tasks = tasks.at(inside)
    speeds = speeds_of(run, tasks)
    met = sorted(np.unique(tasks.client).tolist(), key=lambda client: (speeds.get(client, np.inf), client))
    count = LANES
    while True:
        shown = [met[place] for place in spaced(len(met), count)]
        some = tasks.at(np.isin(tasks.client, shown))
        if len(some.client) <= SPANS or count <= 2:
            break
        count -= 2
    some = some.at(np.arange(len(some.client)) < SPANS)
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
