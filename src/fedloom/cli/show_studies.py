"""Tables of studies on a terminal: comparisons and plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from fedloom.accel.machine import duration, size
from fedloom.core.metric import Metric
from fedloom.evaluate.targets import Cost, cost_of
from fedloom.evaluate.wording import direction, label_of, number
from fedloom.report.charts import merged
from fedloom.studies.chart import letters
from fedloom.studies.checks import trains
from fedloom.studies.compare import Contender, paired, ratio_of, significant
from fedloom.studies.plan import Plan
from fedloom.studies.sweep import Cell, Sweep

STEPS = "without a barrier a round is a step"
MOST = 12  # choices of settings of a method that a table shows


def comparison_rows(contenders: list[Contender], target: float | None) -> list[dict[str, Any]]:
    """One row per method, for JSON; costs are to the target if one is given, else of the whole run."""
    rows = []
    for contender, marked in zip(contenders, significant(contenders)):
        costs = contender.reached(target)
        last, best, name = contender.score()._asdict(), contender.best()._asdict(), contender.metric.name
        row: dict[str, Any] = {"method": contender.name, "score_name": name, "score": last, "best_score": best}
        row |= {"accuracy": last, "best_accuracy": best} if name == "accuracy" else {}
        difference = None if contender is contenders[0] else paired(contender, contenders[0])
        row |= {"score_difference": None if difference is None else {**vars(difference), "significant": marked}}
        row |= {"clients_a_round": contender.asked, "trains": trains(contender.results[0].experiment.build_method())}
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
    plain = all("," not in row["method"] for row in rows)
    columns = (Column("method", no_wrap=plain), Column(name, min_width=wide), "reached")
    table = Table(*columns, title="comparison", caption=caption)
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
            _with_half(row["score"], lambda v: number(score, v)) + _difference(row["score_difference"], score),
            f"{row['reached']} of {row['seeds']}",
        ]
        for name in shown:
            cost, ratio = row[name], row[f"{name}_ratio"]
            below = "" if ratio is None or row is rows[0] else "\n× " + _with_half(ratio, lambda v: f"{v:.2f}")
            cells.append("never" if cost is None else _with_half(cost, writers[name]) + below)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def comparison_notes(contenders: list[Contender]) -> list[str]:
    """How many clients each method asked and how they trained, and what the lines below the scores are."""
    rows = comparison_rows(contenders, None)
    facts = [(row["method"], f"{row['clients_a_round']:.3g} clients a round; {row['trains']}") for row in rows]
    notes = merged(facts)
    if any(row["score_difference"] for row in rows):
        lines = f"below a score: its difference to {rows[0]['method']}, seed by seed"
        if len(contenders[0].results) > 1:
            lines += ", with its 95 % interval; * significant at 5 % (paired t-test, Holm's correction)"
        notes.append(lines)
    return notes


def _difference(value: dict[str, Any] | None, score: Metric) -> str:
    """A line with the difference to the first method, marked where it is significant."""
    if value is None:
        return ""
    sign = "+" if value["mean"] >= 0 else "-"
    half = "" if value["half"] is None else f" ± {number(score, value['half'])}"
    return f"\n{sign}{number(score, abs(value['mean']))}{half}{' *' if value['significant'] else ''}"


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


def sweep_table(sweep: Sweep) -> Table:
    """What was tried, each method's best choices first; that with the best validation score is marked."""
    score, best = sweep.metric, sweep.best
    several = len(sweep.cells[0].contender.results) > 1
    caption = "the setting with the best mean score on validation examples is marked"
    caption += "; ± is the 95 % interval over seeds" if several else ""
    caption += f"; {label_of(score)}: {direction(score)}" if direction(score) else ""
    table = Table(
        Column("", width=1), Column("method", no_wrap=True), "settings", "validation", "test", title="sweep",
        title_justify="left", caption=caption,
    )  # fmt: skip

    def worth(cell: Cell) -> float:
        mean = cell.validation.mean
        return float("inf") if mean != mean else -mean if score.best == "high" else mean

    for method, chosen in best.items():
        cells = sorted((cell for cell in sweep.cells if cell.method == method), key=worth)
        for cell in cells[:MOST]:
            settings = cell.contender.name.removeprefix(method).removeprefix(", ") or "its own"
            values = [_with_half(each._asdict(), lambda v: number(score, v)) for each in (cell.validation, cell.test)]
            table.add_row(*(Text(text) for text in ("*" if cell is chosen else "", method, settings, *values)))
        if len(cells) > MOST:
            table.add_row("", method, f"{len(cells) - MOST} more", "", "")
        table.add_section()
    return table
