"""The output of `fedloom watch`: a live view on a terminal, a line per round elsewhere."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from rich.console import Console, Group as Lines, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from fedloom.accel.machine import duration, size
from fedloom.errors import BadExperiment
from fedloom.evaluate.judge import best_of, is_share
from fedloom.evaluate.wording import direction, label_of, number
from fedloom.report.live import Progress, block_curve, changes, read_progress, time_left
from fedloom.report.recorded import FINISHED, STOPPED

LAST = 8  # rounds in the table
PACE = ("in flight", "staleness")  # columns of asynchronous runs


def line(progress: Progress, row: dict[str, Any]) -> str:
    """A round as one line."""
    parts = [f"round {row['round']}/{progress.rounds}"]
    score = progress.scores.score
    parts += [] if row["score"] is None else [f"{label_of(score)} {number(score, row['score'])}"]
    parts += [f"{name} {row[name]:.4f}" for name in ("loss", "training_loss") if row[name] is not None]
    parts.append(f"arrived {row['arrived']}/{row['clients']}")
    parts += [f"{words} {cell}" for words, cell in zip(PACE, pace_cells(row)) if cell]
    parts += [f"refused {row['rejected']}"] if row["rejected"] else []
    parts.append(f"moved {size(row['bytes_up'] + row['bytes_down'])}")
    parts += [f"virtual {duration(row['virtual_seconds'])}"] if row["virtual_seconds"] is not None else []
    return "  ".join(parts)


def pace_cells(row: dict[str, Any]) -> list[str]:
    """Clients in flight and the mean staleness of replies; empty in rounds with a barrier."""
    return ["" if row.get(name) is None else f"{row[name]:.1f}" for name in ("in_flight", "staleness_mean")]


def view(folder: Path, progress: Progress) -> RenderableType:
    """The live view."""
    rows, experiment = progress.rows, progress.about["experiment"]
    title = Text.assemble((f"{experiment['method']['name']} on {experiment['data']['name']}", "bold"), f"  {folder}")
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        ProgressBar(progress.rounds, len(rows), width=40),
        f"{len(rows)}/{progress.rounds}",
        Text(progress.ended or time_left(progress)),
    )
    lines: list[RenderableType] = [title, bar]
    if not rows:
        return Lines(*lines, Text("no round is written yet; a run writes its tables every ten seconds", style="dim"))
    score = progress.scores.score
    scored = [row["score"] for row in rows if row["score"] is not None]
    if scored:
        words = f"{label_of(score)} {number(score, scored[-1])}  best {number(score, best_of(score, scored))}"
        words += f" ({direction(score)})" if direction(score) else ""
        ends = score.limits if is_share(score) else (min(scored), max(scored))
        lines.append(Text.assemble(("▕", "dim"), (block_curve(scored, *ends), "cyan"), ("▏ ", "dim"), words))
    pace = PACE if "in_flight" in rows[-1] else ()
    names = ("round", label_of(score), "loss", "training loss", "arrived", "refused", *pace, "moved", "virtual time")
    table = Table(*(Column(name, justify="right") for name in names), box=None, header_style="dim")
    for row in rows[-LAST:]:
        cells = ["" if row["score"] is None else number(score, row["score"])]
        cells += ["" if row[n] is None else f"{row[n]:.4f}" for n in ("loss", "training_loss")]
        lasted = "" if row["virtual_seconds"] is None else duration(row["virtual_seconds"])
        counts = [f"{row['arrived']}/{row['clients']}", str(row["rejected"] or ""), *pace_cells(row)[: len(pace)]]
        table.add_row(str(row["round"]), *cells, *counts, size(row["bytes_up"] + row["bytes_down"]), lasted)
    lines += [table, Text(totals(rows), style="dim")]
    return Lines(*lines)


def totals(rows: list[dict[str, Any]]) -> str:
    """Sums over all rounds, as one line."""
    asked, came = (sum(row[name] or 0 for row in rows) for name in ("clients", "arrived"))
    parts = [f"up {size(sum(row['bytes_up'] for row in rows))}", f"down {size(sum(row['bytes_down'] for row in rows))}"]
    parts.append(f"{came:,} of {asked:,} replies arrived")
    if rows[-1]["virtual_seconds"] is not None:
        parts.append(f"virtual time {duration(sum(row['virtual_seconds'] or 0 for row in rows))}")
    if rows[-1]["joules"] is not None:
        parts.append(f"{sum(row['joules'] or 0 for row in rows) / 1000:.1f} kJ")
    return "  ".join(parts)


def show_page(folder: Path, console: Console, port: int) -> None:
    """Serve the live page until Ctrl-C."""
    from fedloom.report.live_page import serve_live

    try:
        page = serve_live(folder, port)
    except OSError as problem:
        raise BadExperiment(
            f"port is {port}, where nothing can be served ({problem.strerror}); name another."
        ) from None
    page.start()
    console.print(f"http://localhost:{page.port}/ shows {folder}; Ctrl-C ends", highlight=False, markup=False)
    threading.Event().wait()


def follow(folder: Path, console: Console, every: float = 1.0) -> bool:
    """Show a run until it ends, and return whether it finished."""
    shown, progress = 0, read_progress(folder)
    if console.is_terminal:
        with Live(view(folder, progress), console=console, refresh_per_second=4) as live:
            for progress in changes(folder, every):
                live.update(view(folder, progress))
        return progress.ended == FINISHED
    for progress in changes(folder, every):
        for row in progress.rows[shown:]:
            console.print(line(progress, row), highlight=False, markup=False, soft_wrap=True)
        shown = len(progress.rows)
    words = "has" if str(progress.ended).startswith(STOPPED) else "is"
    console.print(f"the run {words} {progress.ended}", highlight=False, markup=False, soft_wrap=True)
    return progress.ended == FINISHED
