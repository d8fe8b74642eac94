"""How does a run go, right now? Its folder is read again and again; nothing is ever written or locked there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console, Group as Lines, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from fedloom.chart import duration
from fedloom.folder import LOCK
from fedloom.machine import size
from fedloom.report.read import FINISHED, STOPPED, read_about, read_end, read_rows

BLOCKS = "▁▂▃▄▅▆▇█"
LAST, WIDE = 8, 60  # rounds in the table, characters of the curve
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


def line(seen: Seen, row: dict[str, Any]) -> str:
    """A round in one line, for a pipe."""
    parts = [f"round {row['round']}/{seen.rounds}"]
    parts += [f"{name} {row[name]:.4f}" for name in ("accuracy", "loss", "training_loss") if row[name] is not None]
    parts.append(f"arrived {row['arrived']}/{row['clients']}")
    parts += [f"refused {row['rejected']}"] if row["rejected"] else []
    parts.append(f"moved {size(row['bytes_up'] + row['bytes_down'])}")
    parts += [f"virtual {duration(row['virtual_seconds'])}"] if row["virtual_seconds"] is not None else []
    return "  ".join(parts)


def view(folder: Path, seen: Seen) -> RenderableType:
    """The whole picture, for a terminal."""
    rows, experiment = seen.rows, seen.about["experiment"]
    title = Text.assemble((f"{experiment['method']['name']} on {experiment['data']['name']}", "bold"), f"  {folder}")
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        ProgressBar(seen.rounds, len(rows), width=40), f"{len(rows)}/{seen.rounds}", Text(seen.ended or left(seen))
    )
    lines: list[RenderableType] = [title, bar]
    if not rows:
        return Lines(*lines, Text("no round is written yet; a run writes its tables every ten seconds", style="dim"))
    scored = [row["accuracy"] for row in rows if row["accuracy"] is not None]
    if scored:
        words = f"accuracy {scored[-1]:.4f}  best {max(scored):.4f}"
        lines.append(Text.assemble(("▕", "dim"), (curve(scored), "cyan"), ("▏ ", "dim"), words))
    table = Table(*(Column(name, justify="right") for name in
                    ("round", "accuracy", "loss", "training loss", "arrived", "refused", "moved", "virtual time")),
                  box=None, header_style="dim")  # fmt: skip
    for row in rows[-LAST:]:
        cells = ["" if row[n] is None else f"{row[n]:.4f}" for n in ("accuracy", "loss", "training_loss")]
        lasted = "" if row["virtual_seconds"] is None else duration(row["virtual_seconds"])
        counts = [f"{row['arrived']}/{row['clients']}", str(row["rejected"] or "")]
        table.add_row(str(row["round"]), *cells, *counts, size(row["bytes_up"] + row["bytes_down"]), lasted)
    lines += [table, Text(totals(rows), style="dim")]
    return Lines(*lines)


def totals(rows: list[dict[str, Any]]) -> str:
    """All rounds together."""
    asked, came = (sum(row[name] or 0 for row in rows) for name in ("clients", "arrived"))
    parts = [f"up {size(sum(row['bytes_up'] for row in rows))}", f"down {size(sum(row['bytes_down'] for row in rows))}"]
    parts.append(f"{came:,} of {asked:,} replies arrived")
    if rows[-1]["virtual_seconds"] is not None:
        parts.append(f"virtual time {duration(sum(row['virtual_seconds'] or 0 for row in rows))}")
    if rows[-1]["joules"] is not None:
        parts.append(f"{sum(row['joules'] or 0 for row in rows) / 1000:.1f} kJ")
    return "  ".join(parts)


def follow(folder: Path, console: Console, every: float = 1.0) -> bool:
    """Show a run until it ends; was it finished?"""
    shown, seen = 0, look(folder)
    if console.is_terminal:
        with Live(view(folder, seen), console=console, refresh_per_second=4) as live:
            for seen in changes(folder, every):
                live.update(view(folder, seen))
        return seen.ended == FINISHED
    for seen in changes(folder, every):
        for row in seen.rows[shown:]:
            console.print(line(seen, row), highlight=False, markup=False, soft_wrap=True)
        shown = len(seen.rows)
    console.print(f"the run has {seen.ended}" if str(seen.ended).startswith(STOPPED) else f"the run is {seen.ended}",
                  highlight=False, markup=False, soft_wrap=True)  # fmt: skip
    return seen.ended == FINISHED
