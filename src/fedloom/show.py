"""What does a person see? Progress while a run goes on, and tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fedloom.run import Result, Watch

LINES = 10  # how often a run reports where there is no terminal


@contextmanager
def progress(console: Console, title: str, rounds: int) -> Iterator[Watch]:
    """A bar on a terminal, a few plain lines elsewhere."""
    if not console.is_terminal:
        yield lambda row: _line(console, row, rounds)
        return
    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[state]}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as bar:
        job = bar.add_task(title, total=rounds, state="preparing")
        yield lambda row: bar.update(job, completed=row["round"], state=_state(row))


def _line(console: Console, row: dict[str, Any], rounds: int) -> None:
    every = max(1, rounds // LINES)
    if row["round"] % every == 0 or row["round"] in (1, rounds):
        console.print(f"round {row['round']}/{rounds} {_state(row)}", highlight=False)


def _state(row: dict[str, Any]) -> str:
    parts = [
        f"{name} {row[key]:.4f}" for name, key in (("accuracy", "accuracy"), ("loss", "loss")) if row[key] is not None
    ]
    return "  ".join(parts) or f"training loss {row['training_loss']}"


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def summary_table(result: Result) -> Table:
    """A finished run at a glance."""
    facts = result.summary()
    last = next((row for row in reversed(result.rounds) if row["per_class"] is not None), None)
    table = Table(title=f"{facts['method']} on {result.experiment.data.name}", show_header=False, title_justify="left")
    rows = [
        ("rounds", str(facts["rounds"])),
        ("accuracy", f"{facts['accuracy']:.4f}  (best {facts['best_accuracy']:.4f})"),
        ("loss", f"{facts['loss']:.4f}"),
    ]
    if last is not None:
        seen = [(value, label) for label, value in enumerate(last["per_class"]) if value == value]
        rows.append(("weakest class", f"{min(seen)[1]} at {min(seen)[0]:.4f}"))
    if facts["personal_accuracy"] is not None:
        rows.append(("clients' own accuracy", f"{facts['personal_accuracy']:.4f}  (mean over clients)"))
    rows.append(
        ("sent up, down", f"{size(facts['bytes_up'])}, {size(facts['bytes_down'])}  (float32 numbers, not encoded)")
    )
    if facts["virtual_seconds"] is not None:
        rows.append(("virtual time, energy", f"{facts['virtual_seconds']:.0f} s, {facts['joules'] / 1000:.1f} kJ"))
    rows.append(("time", f"{facts['wall_seconds']:.1f} s"))
    rows.append(("run folder", facts["run"] or "none"))
    for name, value in rows:
        table.add_row(name, Text(value))
    return table
