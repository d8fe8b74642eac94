"""Tables of results and of costs to a target: means over seeds with 95 % intervals, as text."""

from __future__ import annotations

from collections.abc import Sequence

from fedloom.errors import BadExperiment
from fedloom.evaluate.targets import Cost, Interval, cost_of, interval, spent, to_target
from fedloom.report.charts import Cells
from fedloom.report.curves import largest_unit
from fedloom.report.group import Group

LADDER = (0.99, 0.98, 0.97, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
AXES = {"rounds": "rounds", "seconds": "time", "bytes": "bytes", "joules": "energy"}  # cost -> axis in `curves.UNITS`
HEADS = {"rounds": "rounds", "seconds": "virtual time", "bytes": "bytes moved", "joules": "energy"}


def check_targets(targets: Sequence[float]) -> tuple[float, ...]:
    """The accuracies to reach, each once, in rising order."""
    for target in targets:
        if not 0 < target <= 1:
            raise BadExperiment(f"target is {target}; an accuracy to reach lies above 0 and up to 1, such as 0.8.")
    return tuple(sorted(set(targets)))


def own_target(groups: list[Group]) -> tuple[float, ...]:
    """The highest accuracy of `LADDER` that every run has reached; empty if there is none."""
    best = [max((row["accuracy"] for row in run.scored), default=0.0) for group in groups for run in group.runs]
    return next(((target,) for target in LADDER if target <= min(best)), ())


def final_of(group: Group, what: str = "accuracy") -> Interval | None:
    """A measure at the last evaluation over seeds; None if no seed has it."""
    last = [next((row[what] for row in reversed(run.scored) if row[what] is not None), None) for run in group.runs]
    known = [value for value in last if value is not None]
    return interval(known) if known else None


def best_of(group: Group) -> Interval | None:
    """The best accuracy of each run, over seeds."""
    best = [max(row["accuracy"] for row in run.scored) for run in group.runs if run.scored]
    return interval(best) if best else None


def costs_of(group: Group, target: float | None) -> list[Cost]:
    """The cost of the target for each seed that reached it; without a target, of the whole run."""
    runs = [run for run in group.runs if run.rows]
    if target is None:
        return [spent(run.rows, len(run.rows)) for run in runs]
    return [cost for cost in (to_target(run.rows, target) for run in runs) if cost is not None]


def summary(groups: list[Group]) -> Cells:
    """One row per group: final and best accuracy, and the costs of the whole run."""
    rows, owners = [], []
    personal = any(final_of(group, "personal_accuracy") for group in groups)
    for group in groups:
        costs = costs_of(group, None)
        accuracies = [final_of(group), best_of(group), *([final_of(group, "personal_accuracy")] if personal else [])]
        rows.append(
            [
                group.label,
                *(share(value) for value in accuracies),
                *(amount(cost_of(costs, what), what) for what in AXES),
                str(len(group.runs)),
            ]
        )
        owners.append(group)
    head = ["", "accuracy", "best", *(["clients' own"] if personal else []), *HEADS.values(), "seeds"]
    return without_empty(Cells(head, rows, list(owners)))


def target_table(groups: list[Group], target: float) -> Cells:
    """One row per group: the costs to reach an accuracy."""
    rows = []
    for group in groups:
        costs = costs_of(group, target)
        cells = [amount(cost_of(costs, what), what) if costs else "" for what in AXES]
        rows.append([group.label, f"{len(costs)} of {len(group.runs)}", *(cells if costs else ["never", "", "", ""])])
    return without_empty(Cells(["", "seeds that reached it", *HEADS.values()], rows, list(groups)))


def without_empty(cells: Cells) -> Cells:
    """The table without empty columns."""
    full = [place for place in range(len(cells.head)) if any(row[place] not in ("", "–") for row in cells.rows)]
    return Cells([cells.head[p] for p in full], [[row[p] for p in full] for row in cells.rows], cells.groups)


def share(value: Interval | None) -> str:
    """An accuracy with its interval."""
    if value is None:
        return "–"
    return f"{value.mean:.3f}" + ("" if value.half is None else f" ± {value.half:.3f}")


def amount(value: Interval | None, what: str) -> str:
    """A cost with its interval, both in one unit."""
    if value is None:
        return "–"
    unit, word = largest_unit(AXES[what], abs(value.mean))
    digits = 0 if what == "rounds" and value.mean == int(value.mean) else 1
    number, half = f"{value.mean / unit:,.{digits}f}", f"{(value.half or 0) / unit:,.1f}"
    number += "" if half == "0.0" else f" ± {half}"
    return f"{number} {word}".strip()
