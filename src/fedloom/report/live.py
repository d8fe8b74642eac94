"""How does a run go, right now? Its folder is read again and again; nothing is ever written or locked there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.accel.machine import duration
from fedloom.report.read import read_about, read_end, read_rows
from fedloom.runs.folder import LOCK

BLOCKS = "▁▂▃▄▅▆▇█"
WIDE = 60  # characters of a curve
GONE = 15.0  # seconds without a sign of life from a process that is not there


class Seen(NamedTuple):
    """A run as it stands."""

    about: dict[str, Any]
    rows: list[dict[str, Any]]
    ended: str | None

    @property
    def rounds(self) -> int:
        """How many there will be."""
        return int(self.about["experiment"]["rounds"])


def look(folder: Path) -> Seen:
    """Read what is there."""
    return Seen(read_about(folder), read_rows(folder), read_end(folder))


def changes(folder: Path, every: float, sleep: Callable[[float], None] = time.sleep) -> Iterator[Seen]:
    """What is seen first, and whenever something was written; the last says how the run ended."""
    before, quiet = None, time.monotonic()
    while True:
        stamps = [_stamp(folder / name) for name in ("experiment.json", "rounds.parquet", "log.txt")]
        if stamps != before:
            before, quiet = stamps, time.monotonic()
            seen = look(folder)
            yield seen
            if seen.ended is not None:
                return
        elif time.monotonic() - quiet > GONE and not alive(folder):
            yield look(folder)._replace(ended="gone: its process is not on this machine any more")
            return
        sleep(every)


def _stamp(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def alive(folder: Path) -> bool:
    """Is the process there that the folder's lock names? Only its number is read."""
    try:
        os.kill(int((folder / LOCK).read_text().strip()), 0)
    except (OSError, ValueError, OverflowError) as problem:
        return isinstance(problem, PermissionError)
    return True


def curve(values: list[float], wide: int = WIDE) -> str:
    """Values between 0 and 1 as blocks, of many the means of equal parts."""
    parts = min(wide, len(values))
    cuts = [round(place * len(values) / parts) for place in range(parts + 1)] if parts else [0]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    return "".join(BLOCKS[min(7, max(0, int(8 * mean)))] for mean in means)


def left(seen: Seen) -> str:
    """How long it will still take, at the pace of the last rounds."""
    last = [(row["wall_seconds"] or 0.0) + (row["evaluation_seconds"] or 0.0) for row in seen.rows[-20:]]
    if seen.ended is not None or not last:
        return ""
    return f"about {duration((seen.rounds - len(seen.rows)) * sum(last) / len(last))} left"
