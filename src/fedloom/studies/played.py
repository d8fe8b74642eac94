"""The runs of a study, each in a folder of its own, so that a study that was stopped goes on where it was."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedloom.report.recorded import ABOUT, FINISHED, read_about, read_end
from fedloom.report.results import load_result
from fedloom.runs.checkpoint.fingerprint import changes
from fedloom.runs.experiment import Experiment
from fedloom.runs.many_runs import run_all
from fedloom.runs.result import Result
from fedloom.runs.watch import Tell, Watch

LONGEST = 120  # characters of a folder's name


class Job(NamedTuple):
    """A run of a study."""

    experiment: Experiment
    watch: Watch | None
    folder: Path | None


def play_all(jobs: Sequence[Job], stack: bool = True, tell: Tell | None = None) -> list[Result]:
    """The results of all runs, in order: read from their folders where they are finished, else played."""
    found = {place: load_result(job.folder) for place, job in enumerate(jobs) if job.folder and _finished(job)}
    if found and tell is not None:
        tell(f"{len(found)} of {len(jobs)} runs are finished already and are read from their folders")
    for place, result in found.items():
        for row in result.rounds:
            _show(jobs[place].watch, row)
    left = [place for place in range(len(jobs)) if place not in found]
    some = [jobs[place] for place in left]
    folders = [job.folder for job in some]
    played = run_all([job.experiment for job in some], [job.watch for job in some], stack, tell, folders=folders)
    found |= dict(zip(left, played))
    return [found[place] for place in range(len(jobs))]


def folders_for(names: Sequence[str], out: Path | None) -> list[Path | None]:
    """A folder in `out` for each run, named for it; none without `out`."""
    if out is None:
        return [None] * len(names)
    taken: dict[str, int] = {}
    found: list[Path | None] = []
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9.+_=-]+", "-", name).strip("-.")[:LONGEST]
        taken[plain] = taken.get(plain, 0) + 1
        found.append(out / (plain if taken[plain] == 1 else f"{plain}-{taken[plain]}"))
    return found


def _finished(job: Job) -> bool:
    """Whether the folder holds this very run, and it is over."""
    assert job.folder is not None
    if not (job.folder / ABOUT).exists() or read_end(job.folder) != FINISHED:
        return False
    return not changes(read_about(job.folder)["experiment"], job.experiment.model_dump(mode="json"))


def _show(watch: Watch | None, row: dict[str, object]) -> None:
    """Show a row to who watches."""
    if watch is not None:
        watch(row)
