"""A run's tasks on its virtual clock: one for each client asked, with its phases, its fate and the step that took it.

Rounds with a barrier are steps whose tasks all begin when the round before ends.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedloom.core.flight import FATES
from fedloom.report.recorded import Numbers, Recorded, as_floats
from fedloom.runs.columns import WHOLE

PHASES = ("seconds_down", "seconds_compute", "seconds_up")
COUNTED, REFUSED, UNKNOWN, FLYING = "counted", "refused", "unknown", "in flight"
KINDS = (*FATES, COUNTED, REFUSED, UNKNOWN)
COUNTED_COLOUR = "#9DB2BF"
FATE_COLOURS = {  # of work that did not count
    "upload lost": "#D55E00", "download lost": "#8C2D04", "late": "#E69F00", "given up": "#F0C987",
    "too old": "#B8860B", "surplus": "#CC79A7", "recalled": "#CC79A7", REFUSED: "#8C6D31", "silent": "#009E73",
    "spare": "#56B4E9", "unavailable": "#7F7F7F", UNKNOWN: "#7F7F7F", FLYING: "#C9CED3",
}  # fmt: skip
FATE_WORDS = {"silent": "not to send", "surplus": "not waited for", FLYING: "in flight at the end"}


class Tasks(NamedTuple):
    """Columns with one entry per task."""

    client: Numbers
    step: Numbers  # the step in which it is booked
    asked: Numbers  # virtual second
    phases: tuple[Numbers, Numbers, Numbers]  # seconds of download, training, upload; as far as the server waited
    taken: Numbers  # the virtual second of the step
    counted: Numbers  # whether a step took the reply and did not refuse it
    fate: Numbers  # places in FATES
    refused: Numbers
    spent: Numbers  # seconds at work, also those after the server stopped waiting
    staleness: Numbers  # steps; 0 in rounds with a barrier
    base: Numbers  # the version that was sent

    @property
    def seconds(self) -> Numbers:
        """Seconds at work while the server waited."""
        return sum(self.phases)  # type: ignore[return-value]

    @property
    def end(self) -> Numbers:
        """The virtual second at which the work ended."""
        return self.asked + self.seconds

    def at(self, which: Numbers) -> Tasks:
        """Some of the tasks."""
        down, compute, up = self.phases
        columns = {name: column[which] for name, column in self._asdict().items() if name != "phases"}
        return Tasks(**columns, phases=(down[which], compute[which], up[which]))

    def kinds(self) -> Numbers:
        """What became of each task, as its place in `KINDS`."""
        known = np.where((self.fate >= 0) & (self.fate < len(FATES)), self.fate, KINDS.index(UNKNOWN))
        refused = np.where(self.refused, KINDS.index(REFUSED), known)
        return np.where(self.counted, KINDS.index(COUNTED), refused)


def colour_of(fate: str) -> str:
    """The colour of a fate in bars of all fates."""
    return FATE_COLOURS.get(fate, COUNTED_COLOUR)


def word_of(fate: str) -> str:
    """A fate as charts call it."""
    return FATE_WORDS.get(fate, fate)


def tasks_of(run: Recorded) -> Tasks | None:
    """The tasks of a run; None where nothing took time, or nobody was asked."""
    columns = run.clients
    if run.in_flight:
        columns = {name: np.concatenate([values, run.in_flight[name]]) for name, values in columns.items()}
    if not len(columns.get("round", ())) or not all(name in columns for name in (*PHASES, "fate")):
        return None
    lasted = as_floats([row["virtual_seconds"] for row in run.rows])
    if not len(lasted) or np.isnan(lasted).any():
        return None
    step = columns["round"].astype(np.int64)
    ends = np.concatenate([[0.0], np.cumsum(lasted)])  # ends[r]: the second of step r
    taken = ends[np.minimum(step, len(ends) - 1)]
    down, compute, up = (np.nan_to_num(columns[name].astype(np.float64), posinf=0.0) for name in PHASES)
    spent = down + compute + up
    begin = ends[np.minimum(step, len(ends)) - 1]
    asked = columns["asked"].astype(np.float64) if "asked" in columns else begin
    fate = columns["fate"].astype(np.int64)
    down, compute, up = _cut(taken - asked, down, compute, up)  # nobody is awaited beyond the step
    counted, none = columns["arrived"].astype(bool), np.zeros(len(step), np.int64)
    return Tasks(
        columns["client"], step, asked, (down, compute, up), taken, counted, fate, columns["rejected"] > 0, spent,
        columns.get("staleness", none), columns.get("base", step - 1),
    )  # fmt: skip


def _cut(limit: Numbers, *phases: Numbers) -> tuple[Numbers, ...]:
    """Phases one after another, none of them beyond `limit` seconds in all."""
    found = []
    for phase in phases:
        found.append(np.minimum(phase, limit).clip(min=0.0))
        limit = limit - phase
    return tuple(found)


def speeds_of(run: Recorded, tasks: Tasks) -> dict[int, float]:
    """Seconds that a whole round takes each client by its device; of older runs those that its tasks took."""
    whole = run.kept.get(WHOLE)
    if whole is not None:
        return {number: seconds for number, seconds in enumerate(whole.tolist()) if np.isfinite(seconds)}
    worked = tasks.at(tasks.phases[2] > 0)
    return {int(one): float(worked.seconds[worked.client == one].mean()) for one in np.unique(worked.client)}


def barrier(run: Recorded) -> bool:
    """Whether the run's rounds had a barrier."""
    return "asked" not in run.clients
