"""What does a person see? Progress while a run goes on, and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fedloom.compare import Contender, cost_of
from fedloom.evaluate.targets import Cost
from fedloom.plan import Plan
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
    """How a run stands; a comparison says which run it is."""
    parts = [
        f"{name} {row[key]:.4f}" for name, key in (("accuracy", "accuracy"), ("loss", "loss")) if row[key] is not None
    ]
    parts = parts or [f"training loss {row['training_loss']}"]
    return "  ".join([row["state"], *parts] if "state" in row else parts)


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
    rows.append(("sent up, down", f"{size(facts['bytes_up'])}, {size(facts['bytes_down'])}"))
    if facts["virtual_seconds"] is not None:
        rows.append(("virtual time, energy", f"{facts['virtual_seconds']:.0f} s, {facts['joules'] / 1000:.1f} kJ"))
    rows.append(("time", f"{facts['wall_seconds']:.1f} s"))
    rows.append(("run folder", facts["run"] or "none"))
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def comparison_rows(contenders: list[Contender], target: float | None) -> list[dict[str, Any]]:
    """One row a method, for machines; costs are to the target where one is given, else of the whole run."""
    rows = []
    for contender in contenders:
        costs = contender.spent() if target is None else contender.reached(target)
        row: dict[str, Any] = {"method": contender.name, "accuracy": contender.accuracy()._asdict()}
        row |= {"best_accuracy": contender.best()._asdict(), "seeds": len(contender.results), "reached": len(costs)}
        for what in Cost._fields:
            found = cost_of(costs, what)
            row[what] = None if found is None else found._asdict()
        rows.append(row)
    return rows


def comparison_table(contenders: list[Contender], target: float | None) -> Table:
    """The same for people; ratios are to the first method."""
    rows = comparison_rows(contenders, target)
    what = "of the whole run" if target is None else f"to reach {target:g}"
    caption = f"mean over seeds, ± 95 % interval; costs {what}, in brackets relative to {rows[0]['method']}"
    table = Table("method", "accuracy", "reached", title="comparison", title_justify="left", caption=caption)
    writers: dict[str, Callable[[float], str]] = {
        "rounds": lambda v: f"{v:.1f}",
        "seconds": _duration,
        "bytes": size,
        "joules": lambda v: f"{v / 1000:.1f} kJ",
    }
    shown = [name for name in writers if any(row[name] is not None for row in rows)]
    for name in shown:
        table.add_column({"seconds": "virtual time", "joules": "energy"}.get(name, name), justify="right")
    for row in rows:
        cells = [row["method"], _with_half(row["accuracy"]), f"{row['reached']} of {row['seeds']}"]
        for name in shown:
            own, first = row[name], rows[0][name]
            ratio = f" ({own['mean'] / first['mean']:.2f})" if own and first and first["mean"] else ""
            cells.append("never" if own is None else writers[name](own["mean"]) + ratio)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _with_half(value: dict[str, Any]) -> str:
    half = "" if value["half"] is None else f" ± {value['half']:.4f}"
    return f"{value['mean']:.4f}{half}"


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def plan_table(plan: Plan) -> Table:
    """The candidates by time to the target; a star marks the trade-off, options that no other beats."""
    best = {what: plan.best(what) for what in ("seconds", "bytes", "joules")}
    names = {"seconds": "soonest", "bytes": "fewest bytes", "joules": "least energy"}
    caption = "* on the trade-off between time, bytes and energy: no other is better in all three"
    table = Table(title=f"to reach {plan.target:g}", title_justify="left", caption=caption)
    for name in ("", "method, codec", "rounds", "virtual time", "bytes", "energy", "best at"):
        table.add_column(name)
    for option in plan.options:
        cells = ["*" if option in plan.front else "", option.name, f"{option.rounds:.1f}", _duration(option.seconds)]
        cells += [size(option.bytes), f"{option.joules / 1000:.1f} kJ"]
        cells.append(", ".join(names[what] for what, winner in best.items() if winner is option))
        table.add_row(*(Text(cell) for cell in cells))
    for contender in plan.missed:
        table.add_row("", Text(contender.name), f"never (best {contender.best().mean:.3f})", "", "", "", "")
    return table
