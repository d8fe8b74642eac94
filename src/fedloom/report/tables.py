"""Tables of results and of costs to a target: means over seeds with 95 % intervals, as text."""

from __future__ import annotations

from collections.abc import Sequence

from fedloom.core.metric import Metric
from fedloom.evaluate.judge import best_of, check_target, plain_target
from fedloom.evaluate.targets import Cost, Interval, cost_of, interval, spent, to_target
from fedloom.evaluate.wording import decimals, label_of
from fedloom.report.charts import Cells
from fedloom.report.curves import largest_unit
from fedloom.report.group import Group
from fedloom.report.recorded import Recorded

AXES = {"rounds": "rounds", "seconds": "time", "bytes": "bytes", "joules": "energy"}  # cost -> axis in `curves.UNITS`
HEADS = {"rounds": "rounds", "seconds": "virtual time", "bytes": "bytes moved", "joules": "energy"}


def check_targets(groups: list[Group], targets: Sequence[float]) -> tuple[float, ...]:
    """The scores to reach, each once, the easiest first."""
    score = groups[0].scores.score
    for target in targets:
        check_target(score, target)
    return tuple(sorted(set(targets), reverse=score.best == "low"))


def own_target(groups: list[Group]) -> tuple[float, ...]:
    """The best plain number that every run has reached; empty if there is none."""
    score = groups[0].scores.score
    runs = [run for group in groups for run in group.runs]
    if not all(run.scored for run in runs):
        return ()
    best = [_best(run, score) for run in runs]
    target = plain_target(score, min(best) if score.best == "high" else max(best))
    return () if target is None else (target,)


def _best(run: Recorded, score: Metric) -> float:
    """The best score of a run."""
    return best_of(score, [row["score"] for row in run.scored])


def final_of(group: Group, what: str = "score") -> Interval | None:
    """A measure at the last evaluation over seeds; None if no seed has it, or one has ended without a finite score."""
    if any(run.diverged for run in group.runs):
        return None
    last = [next((row[what] for row in reversed(run.scored) if row.get(what) is not None), None) for run in group.runs]
    known = [value for value in last if value is not None]
    return interval(known) if known else None


def best_score_of(group: Group) -> Interval | None:
    """The best score of each run, over seeds."""
    best = [_best(run, group.scores.score) for run in group.runs if run.scored]
    return interval(best) if best else None


def costs_of(group: Group, target: float | None) -> list[Cost]:
    """The cost of the target for each seed that reached it; without a target, of the whole run."""
    runs = [run for run in group.runs if run.rows]
    if target is None:
        return [spent(run.rows, len(run.rows)) for run in runs]
    return [cost for cost in (to_target(run.rows, target, group.scores.score.best) for run in runs) if cost is not None]


def summary(groups: list[Group]) -> Cells:
    """One row per group: final and best score, and the costs of the whole run."""
    rows, owners = [], []
    score, own = groups[0].scores.score, groups[0].scores.personal
    personal = any(final_of(group, "personal_score") for group in groups)
    for group in groups:
        costs = costs_of(group, None)
        scores = [(score, final_of(group)), (score, best_score_of(group))]
        scores += [(own, final_of(group, "personal_score"))] if personal else []
        rows.append(
            [
                group.label,
                *(with_half(metric, value) for metric, value in scores),
                *(amount(cost_of(costs, what), what) for what in AXES),
                str(len(group.runs)),
            ]
        )
        owners.append(group)
    whose = "clients' own" + ("" if own.name == score.name else f" {label_of(own)}")
    head = ["", label_of(score), "best", *([whose] if personal else []), *HEADS.values(), "seeds"]
    return without_empty(Cells(head, rows, list(owners)))


def target_table(groups: list[Group], target: float) -> Cells:
    """One row per group: the costs to reach a score."""
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


def with_half(metric: Metric, value: Interval | None) -> str:
    """A value of a metric with its interval."""
    if value is None:
        return "–"
    digits = decimals(metric, value.mean, 3)
    return f"{value.mean:,.{digits}f}" + ("" if value.half is None else f" ± {value.half:,.{digits}f}")


def amount(value: Interval | None, what: str) -> str:
    """A cost with its interval, both in one unit."""
    if value is None:
        return "–"
    unit, word = largest_unit(AXES[what], abs(value.mean))
    digits = 0 if what == "rounds" and value.mean == int(value.mean) else 1
    number, half = f"{value.mean / unit:,.{digits}f}", f"{(value.half or 0) / unit:,.1f}"
    number += "" if half == "0.0" else f" ± {half}"
    return f"{number} {word}".strip()
