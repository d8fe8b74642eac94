"""Progress of a run that is not over, read from its folder; nothing is written or locked there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.accel.machine import duration
from fedloom.report.about import Scores, scores_in
from fedloom.report.recorded import read_about, read_end, read_rows
from fedloom.runs.folder import LOCK

BLOCKS = "▁▂▃▄▅▆▇█"
WIDE = 60  # characters of a curve
GONE = 15.0  # seconds without a change after which a run whose process does not exist counts as gone


class Progress(NamedTuple):
    """A run's rows so far, and how it ended."""

    about: dict[str, Any]
    rows: list[dict[str, Any]]
    ended: str | None

    @property
    def rounds(self) -> int:
        """The number of rounds of the whole run."""
        return int(self.about["experiment"]["rounds"])

    @property
    def scores(self) -> Scores:
        """Its metrics."""
        return scores_in(self.about)


def read_progress(folder: Path) -> Progress:
    """Read a run folder."""
    return Progress(read_about(folder), read_rows(folder), read_end(folder))


def changes(folder: Path, every: float, sleep: Callable[[float], None] = time.sleep) -> Iterator[Progress]:
    """Yield the progress at first and after each change of the folder, until the run has ended."""
    before, quiet = None, time.monotonic()
    while True:
        stamps = [_stamp(folder / name) for name in ("experiment.json", "rounds.parquet", "log.txt")]
        if stamps != before:
            before, quiet = stamps, time.monotonic()
            progress = read_progress(folder)
            yield progress
            if progress.ended is not None:
                return
        elif time.monotonic() - quiet > GONE and not process_exists(folder):
            yield read_progress(folder)._replace(ended="gone: its process is not on this machine any more")
            return
        sleep(every)


def _stamp(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def process_exists(folder: Path) -> bool:
    """Whether the process that locked the folder exists; only its number is read."""
    try:
        os.kill(int((folder / LOCK).read_text().strip()), 0)
    except (OSError, ValueError, OverflowError) as problem:
        return isinstance(problem, PermissionError)
    return True


def block_curve(values: list[float], low: float = 0.0, high: float = 1.0, wide: int = WIDE) -> str:
    """Values between `low` and `high` as at most `wide` blocks, each the mean of an equal part."""
    parts = min(wide, len(values))
    cuts = [round(place * len(values) / parts) for place in range(parts + 1)] if parts else [0]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    span = high - low or 1.0
    return "".join(BLOCKS[min(7, max(0, int(8 * (mean - low) / span)))] for mean in means)


def time_left(progress: Progress) -> str:
    """The expected time left, at the pace of the last 20 rounds."""
    last = [(row["wall_seconds"] or 0.0) + (row["evaluation_seconds"] or 0.0) for row in progress.rows[-20:]]
    if progress.ended is not None or not last:
        return ""
    return f"about {duration((progress.rounds - len(progress.rows)) * sum(last) / len(last))} left"
