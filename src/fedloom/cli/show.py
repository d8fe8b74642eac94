"""What commands print on a terminal: progress of a run, and tables of results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedloom.accel.machine import size
from fedloom.cli.options import WARNINGS
from fedloom.cli.progress_bar import ProgressBar, state_of
from fedloom.core.metric import Metric
from fedloom.evaluate.judge import ACCURACY
from fedloom.evaluate.wording import direction, label_of, number
from fedloom.report.about import class_names, name_of
from fedloom.runs.explain import Section
from fedloom.runs.result import Result
from fedloom.runs.watch import Watch

LINES = 10  # of progress without a terminal


@contextmanager
def progress(console: Console, name: str, rounds: int, score: Metric = ACCURACY) -> Iterator[Watch]:
    """Show progress: a bar on a terminal, with warnings above it, and a few plain lines elsewhere."""
    if not console.is_terminal:
        yield lambda row: _line(console, row, rounds, score)
        return
    bar = ProgressBar(console, score)
    bar.start(name, rounds)
    before, WARNINGS.console = WARNINGS.console, console
    try:
        yield bar.round
    finally:
        WARNINGS.console = before
        bar.end(None)


def _line(console: Console, row: dict[str, Any], rounds: int, score: Metric) -> None:
    """Print a line of progress, for about `LINES` of all rounds."""
    every = max(1, rounds // LINES)
    if row["round"] % every == 0 or row["round"] in (1, rounds):
        console.print(f"round {row['round']}/{rounds} {state_of(row, score)}", highlight=False, soft_wrap=True)


def summary_table(result: Result) -> Table:
    """The summary of a finished run."""
    facts = result.summary()
    score, own = result.goal.score, result.goal.personal
    last = next((row for row in reversed(result.rounds) if row.get("per_class")), None)
    best = ", ".join([f"best {number(score, facts['best_score'])}", *filter(None, [direction(score)])])
    table = Table(title=f"{facts['method']} on {result.experiment.data.name}", show_header=False, title_justify="left")
    rows = [
        ("rounds", _rounds_of(result)),
        (label_of(score), f"{number(score, facts['score'])}  ({best})"),
        ("loss", "–" if facts["loss"] is None else f"{facts['loss']:.4f}"),
    ]
    if last is not None:
        seen = [(value, place) for place, value in enumerate(last["per_class"]) if value is not None and value == value]
        worst, place = min(seen)
        rows.append(("weakest class", f"{name_of(class_names(result.folder), place)} at {worst:.4f}"))
    if facts["personal_score"] is not None:
        rows.append((f"clients' own {label_of(own)}", f"{number(own, facts['personal_score'])}  (mean over clients)"))
    rows.append(("examples trained", f"{facts['examples_trained']:,}"))
    rows.append(("sent up, down", f"{size(facts['bytes_up'])}, {size(facts['bytes_down'])}"))
    if facts["joules"] is not None:
        rows.append(("virtual time, energy", f"{facts['virtual_seconds']:.0f} s, {facts['joules'] / 1000:.1f} kJ"))
    if "in_flight" in result.rounds[-1]:
        rows.append(("in flight, staleness", pace_of(result.rounds)))
    if facts["rejected"]:
        rows.append(("replies refused", ", ".join(f"{count:,} ({why})" for why, count in facts["rejected"].items())))
    rows += [(name.replace("_", ", "), f"{value:.4g}") for name, value in result.outcome.items()]
    rows.append(("time", f"{facts['wall_seconds']:.1f} s"))
    rows.append(("run folder", facts["run"] or "none"))
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def _rounds_of(result: Result) -> str:
    """How many rounds there were, and why there were not more."""
    played, asked = len(result.rounds), result.experiment.rounds
    if played >= asked:
        return str(played)
    why = result.experiment.until.why_over(result.rounds, result.goal.score)
    return f"{played} of {asked}" + ("" if why is None else f": {why}")


def pace_of(rows: list[dict[str, Any]]) -> str:
    """Clients in flight over the whole time, and the staleness of all replies that counted."""
    seconds = sum(row["virtual_seconds"] for row in rows)
    flying = sum(row["in_flight"] * row["virtual_seconds"] for row in rows) / seconds if seconds else 0.0
    counted = [row for row in rows if row["staleness_mean"] is not None]
    arrived = sum(row["arrived"] for row in counted)
    if not arrived:
        return f"{flying:.1f} clients, no reply counted"
    stale = sum(row["staleness_mean"] * row["arrived"] for row in counted) / arrived
    return f"{flying:.1f} clients, {stale:.1f} steps (at most {max(row['staleness_max'] for row in counted):.0f})"


def explanation_tables(sections: list[Section]) -> Iterator[Table]:
    """What a run would do, one table per section."""
    for title, lines in sections:
        table = Table(
            title=title, title_justify="left", title_style="bold", show_header=False, box=None, padding=(0, 1)
        )
        table.add_column(no_wrap=True, style="cyan")
        table.add_column()
        for name, text in lines:
            table.add_row(Text(name), Text(text))
        yield table
