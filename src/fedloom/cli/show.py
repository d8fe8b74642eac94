"""What commands print on a terminal: progress of a run, and tables of results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from fedloom.accel.machine import duration, size
from fedloom.core.metric import Metric
from fedloom.evaluate.judge import ACCURACY
from fedloom.evaluate.targets import Cost, cost_of
from fedloom.evaluate.wording import direction, label_of, number
from fedloom.report.about import class_names, name_of
from fedloom.runs.explain import Section
from fedloom.runs.result import Result
from fedloom.runs.watch import Watch
from fedloom.studies.chart import letters
from fedloom.studies.compare import Contender, ratio_of
from fedloom.studies.plan import Plan

STEPS = "without a barrier a round is a step"
LINES = 10  # of progress without a terminal


@contextmanager
def progress(console: Console, name: str, rounds: int, score: Metric = ACCURACY) -> Iterator[Watch]:
    """Show progress: a bar on a terminal, a few plain lines elsewhere."""
    if not console.is_terminal:
        yield lambda row: _line(console, row, rounds, score)
        return
    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[state]}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as bar:
        job = bar.add_task(name, total=rounds, state="preparing")
        yield lambda row: bar.update(job, completed=row["round"], state=_state(row, score))


def _line(console: Console, row: dict[str, Any], rounds: int, score: Metric) -> None:
    """Print a line of progress, for about `LINES` of all rounds."""
    every = max(1, rounds // LINES)
    if row["round"] % every == 0 or row["round"] in (1, rounds):
        console.print(f"round {row['round']}/{rounds} {_state(row, score)}", highlight=False)


def _state(row: dict[str, Any], score: Metric) -> str:
    """The state of a run; in a comparison, with the run's name."""
    parts = [] if row["score"] is None else [f"{label_of(score)} {number(score, row['score'])}"]
    parts += [] if row["loss"] is None else [f"loss {row['loss']:.4f}"]
    parts = parts or [f"training loss {row['training_loss']}"]
    return "  ".join([row["state"], *parts] if "state" in row else parts)


def summary_table(result: Result) -> Table:
    """The summary of a finished run."""
    facts = result.summary()
    score, own = result.goal.score, result.goal.personal
    last = next((row for row in reversed(result.rounds) if row.get("per_class")), None)
    best = ", ".join([f"best {number(score, facts['best_score'])}", *filter(None, [direction(score)])])
    table = Table(title=f"{facts['method']} on {result.experiment.data.name}", show_header=False, title_justify="left")
    rows = [
        ("rounds", str(facts["rounds"])),
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


def comparison_rows(contenders: list[Contender], target: float | None) -> list[dict[str, Any]]:
    """One row per method, for JSON; costs are to the target if one is given, else of the whole run."""
    rows = []
    for contender in contenders:
        costs = contender.reached(target)
        last, best, name = contender.score()._asdict(), contender.best()._asdict(), contender.metric.name
        row: dict[str, Any] = {"method": contender.name, "score_name": name, "score": last, "best_score": best}
        row |= {"accuracy": last, "best_accuracy": best} if name == "accuracy" else {}
        row |= {"seeds": len(contender.results), "reached": len(costs)}
        for what in Cost._fields:
            found, ratio = cost_of(costs, what), ratio_of(contender, contenders[0], target, what)
            row[what] = None if found is None else found._asdict()
            row[f"{what}_ratio"] = None if ratio is None else ratio._asdict()
        rows.append(row)
    return rows


def comparison_table(contenders: list[Contender], target: float | None) -> Table:
    """The comparison as a table; ratios are to the first method."""
    rows = comparison_rows(contenders, target)
    score = contenders[0].metric
    name, wide = label_of(score), max(map(len, label_of(score).split()), default=0)
    what = "of the whole run" if target is None else f"to reach {name} {target:g}"
    caption = f"mean over seeds ± 95 % interval; costs {what}, below them relative to {rows[0]['method']}, seed by seed"
    caption += f"; {name}: {direction(score)}" if direction(score) else ""
    caption += f"; {STEPS}" if any("in_flight" in c.results[0].rounds[-1] for c in contenders) else ""
    table = Table(
        Column("method", no_wrap=True), Column(name, min_width=wide), "reached", title="comparison", caption=caption
    )
    table.title_justify = "left"
    writers: dict[str, Callable[[float], str]] = {
        "rounds": lambda v: f"{v:.1f}",
        "seconds": duration,
        "bytes": size,
        "joules": lambda v: f"{v / 1000:.1f} kJ",
    }
    shown = [name for name in writers if any(row[name] is not None for row in rows)]
    for name in shown:
        table.add_column({"seconds": "virtual time", "joules": "energy"}.get(name, name), justify="right")
    for row in rows:
        cells = [
            row["method"],
            _with_half(row["score"], lambda v: number(score, v)),
            f"{row['reached']} of {row['seeds']}",
        ]
        for name in shown:
            cost, ratio = row[name], row[f"{name}_ratio"]
            below = "" if ratio is None or row is rows[0] else "\n× " + _with_half(ratio, lambda v: f"{v:.2f}")
            cells.append("never" if cost is None else _with_half(cost, writers[name]) + below)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _with_half(value: dict[str, Any], write: Callable[[float], str]) -> str:
    """A mean with the half width of its interval."""
    return write(value["mean"]) + ("" if value["half"] is None else f" ± {write(value['half'])}")


def plan_rows(plan: Plan) -> list[dict[str, Any]]:
    """The options of a plan, for JSON."""
    costs = ("rounds", "seconds", "bytes", "joules")
    front = plan.front
    return [{"name": o.name, **{what: getattr(o, what) for what in costs}, "front": o in front} for o in plan.options]


def plan_table(plan: Plan) -> Table:
    """The candidates by time to the target; letters mark the trade-off: options that no other beats."""
    best = {what: plan.best(what) for what in ("seconds", "bytes", "joules")}
    names = {"seconds": "soonest", "bytes": "fewest bytes", "joules": "least energy"}
    caption = "with a letter: on the trade-off between time, bytes and energy, no other is better in all three"
    every = [option.experiment for option in plan.options] + [one.results[0].experiment for one in plan.missed]
    caption += "" if all(one.build_method().pace.barrier for one in every) else f"; {STEPS}"
    table = Table(title=f"to reach {label_of(plan.score)} {plan.target:g}", title_justify="left", caption=caption)
    for name in ("", "candidate", "rounds", "time", "bytes", "energy", "best at"):
        table.add_column(name, no_wrap=name not in ("candidate", "best at"), overflow="fold")
    marks = letters(plan)
    for option in plan.options:
        cells = [marks.get(option.name, ""), option.name, f"{option.rounds:.1f}", duration(option.seconds)]
        cells += [size(option.bytes), f"{option.joules / 1000:.1f} kJ"]
        cells.append(", ".join(names[what] for what, winner in best.items() if winner is option))
        table.add_row(*(Text(cell) for cell in cells))
    for contender in plan.missed:
        table.add_row(
            "", Text(contender.name), "never", "", "", "", f"reached {number(plan.score, contender.best().mean, 3)}"
        )
    return table


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
