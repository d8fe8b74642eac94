"""Sections of a report: their order, titles, texts, charts and tables."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedloom.evaluate.judge import is_share
from fedloom.evaluate.wording import direction, label_of, title
from fedloom.report.charts import Cells, Chart
from fedloom.report.curves import curves_of
from fedloom.report.fleet import fairness_of, losses_of, shares_of, virtual_time_of, wall_time_of
from fedloom.report.group import Group
from fedloom.report.models import classes_of, coverage_of, similarity_of
from fedloom.report.pace import busy_of, staleness_of, steps_of, timed, work_of
from fedloom.report.settings import settings_of
from fedloom.report.tables import summary, target_table
from fedloom.report.timeline import timeline_of


@dataclass(frozen=True)
class Section:
    """A heading with a chart and tables; without these, `lead` says why."""

    key: str
    title: str
    lead: str
    chart: Chart | None = None
    tables: list[tuple[str, Cells]] = field(default_factory=list)  # caption and cells
    notes: list[str] = field(default_factory=list)


SEEDS = "Lines are means over seeds, bands reach from the lowest to the highest seed."


def sections_of(groups: list[Group], targets: tuple[float, ...], chosen: bool) -> list[Section]:
    """All sections; `chosen`: no target was given, so `targets` was chosen from the runs."""
    several = any(len(group.runs) > 1 for group in groups)
    over = " Means over seeds; ± is the 95 % interval (Student's t)." if several else ""
    score = groups[0].scores.score
    name = label_of(score)
    better = f" {title(name)}: {direction(score)}." if direction(score) else ""
    key = "accuracy" if score.name == "accuracy" else "score"
    whisker = " Whiskers reach from the lowest to the highest seed." if several else ""
    sections = [Section("result", "Results", f"At the last evaluation; costs are of the whole run.{over}{better}",
                        tables=[("", summary(groups))])]  # fmt: skip
    curves, notes = curves_of(groups, targets)
    if curves.lines:
        lead = f"On the test set, at every evaluation.{better} {SEEDS if several else ''}".strip()
        sections.append(Section(key, f"{title(name)} over time", lead, curves, notes=notes))
        sections.append(_targets(groups, targets, chosen, over))
    else:
        sections.append(Section(key, f"{title(name)} over time", "No round has been evaluated yet.", notes=notes))
    sections += _settings(groups)
    classes, notes = classes_of(groups)
    if classes is not None:
        lead = f"Of the global model at the last evaluation.{whisker}"
        sections.append(Section("classes", "Accuracy within classes", lead, classes, notes=notes))
    sections += _clients(groups)
    sections += _models(groups)
    sections += _time(groups)
    return sections


def _targets(groups: list[Group], targets: tuple[float, ...], chosen: bool, over: str) -> Section:
    """Costs to reach each target."""
    score, heading = groups[0].scores.score, "Costs to reach a target"
    name = label_of(score)
    if not targets:
        return Section("targets", heading, f"No plain {name} was reached by every run; name one with --target.")
    side, most = ("above", "highest") if score.best == "high" else ("below", "lowest")
    lead = f"Up to the first evaluation at or {side} the target, over those seeds that reached it." + over
    if chosen:
        lead += f" The target is the {most} plain {name}, such as {0.8 if is_share(score) else 5:g}, that every run "
        lead += "reached; --target names others."
    return Section("targets", heading, lead, tables=[(f"{name} {t:g}", target_table(groups, t)) for t in targets])


def _settings(groups: list[Group]) -> list[Section]:
    """What was tried, where methods were run with several settings."""
    chart, table, notes = settings_of(groups)
    if chart is None or table is None:
        return []
    lead = "The mean over seeds of every choice of settings, at the last evaluation. The table has each method's best."
    return [Section("settings", "Settings", lead, chart, [("", table)], notes)]


def _clients(groups: list[Group]) -> list[Section]:
    """Shares, lost replies and fairness."""
    found = []
    shares, notes = shares_of(groups)
    if shares is not None:
        lead = "Every row is a client, every column a round; blank where the client did not take part."
        found.append(Section("shares", "Shares and lost replies of clients", lead, shares, notes=notes))
    losses, table = losses_of(groups)
    if losses is not None and table is not None:
        lead = "Percentages of all replies that were asked for, over all rounds and seeds; the table has the counts."
        found.append(Section("losses", "Lost and refused replies", lead, losses, [("replies", table)]))
    elif shares is not None:
        found.append(Section("losses", "Lost and refused replies", "Every reply that was asked for arrived."))
    fairness, table, notes = fairness_of(groups)
    own = groups[0].scores.personal
    lead = f"Each client's {label_of(own)} on test examples of its own, at the last evaluation. "
    lead += f"A line that stays {own.best} to the left is fair."
    if fairness is None or table is None:
        lead = "Clients had no test examples of their own; --set split=[0.8,0.0,0.2] gives them a fifth of theirs."
    found.append(Section("fairness", "Fairness across clients", lead, fairness, [("", table)] if table else [], notes))
    return found


def _models(groups: list[Group]) -> list[Section]:
    """Coverage of neurons, and distances between clients' models."""
    found = []
    coverage, notes = coverage_of(groups)
    lead = "The part of each neuron's incoming weights that arrives with a reply, over all rounds and seeds."
    if coverage is None:
        lead = "Every reply held the whole model."
    else:
        whole = [group.label for group in groups if group.label not in coverage.by]
        notes += [f"Replies of {', '.join(whole)} hold the whole model."] if whole else []
    found.append(Section("coverage", "Coverage of neurons", lead, coverage, notes=notes))
    similarity, notes = similarity_of(groups)
    if similarity is not None:
        lead = "Distances between clients' models as of their last replies; clients with close models are next to each "
        lead += "other, blank means never compared. The nearest client stands in for one whose reply is lost."
        found.append(Section("similarity", "Similarity of clients", lead, similarity, notes=notes))
    return found


def _time(groups: list[Group]) -> list[Section]:
    """Virtual time and wall time."""
    found = []
    virtual, wall = virtual_time_of(groups), wall_time_of(groups)
    lead = "A client's steps in a round by the simulated clock, and its wait for the slowest client."
    if virtual is None:
        lead = "No devices were simulated; --fleet chooses some."
    found.append(Section("time", "Virtual time", lead, virtual))
    found += _pace(groups)
    if wall is not None:
        lead = "On the machine of the simulation. On a GPU a step's time ends at its launch, not when it is done."
        found.append(Section("wall", "Wall time", lead, wall))
    return found


def _pace(groups: list[Group]) -> list[Section]:
    """Who trained when, and what came of it; nothing where no task took time."""
    runs = timed(groups)
    timeline, notes = timeline_of(runs)
    busy, (stale, stale_table), (work, work_table), steps = (
        busy_of(runs),
        staleness_of(runs),
        work_of(runs),
        steps_of(runs),
    )
    if timeline is None or busy is None or work is None or work_table is None:
        return []
    lead = "Every bar is a client's task: thin while it downloads or uploads, thick while it trains; a hairline leads "
    lead += "to the step that took the reply. Vertical lines are steps, or rounds, with their numbers on top."
    if any(lanes.oldest for windows in timeline.by.values() for lanes in windows.values()):
        lead += " Numbers are staleness: the steps made since the client was sent its model."
    found = [Section("timeline", "Who trained when", lead, timeline, notes=notes)]
    lead = "Means over the time between two steps, or over a round."
    found.append(Section("busy", "Clients at work", lead, busy))
    if stale is not None and stale_table is not None:
        lead = "A reply is fresh, 0, if no step was made since its client was sent the model."
        found.append(Section("staleness", "Staleness", lead, stale, tables=[("", stale_table)]))
    lead = "Seconds that clients downloaded, trained and uploaded, by what became of the reply. The table has means of "
    lead += "a run; what is in flight at its end is not among what did not count."
    found.append(Section("work", "Work that did not count", lead, work, tables=[("", work_table)]))
    if steps is not None:
        lead = "Whose replies the model is made of. Where bars are equal, devices of every speed have as much say."
        found.append(Section("speeds", "Replies by speed of the device", lead, steps))
    return found
