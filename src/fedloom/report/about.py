"""What `experiment.json` says of a run's score, of its metrics, and of the names of clients and classes."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.core.metric import ANY, SHARE
from fedloom.evaluate.judge import ACCURACY, LOSS, MetricFacts
from fedloom.evaluate.wording import shortened
from fedloom.reading.texts import read_json

CLIENTS, CLASSES = "client_names", "class_names"  # keys of experiment.json
PER_CLASS = "per_class"  # a metric with a value for each class: its column holds lists


class Scores(NamedTuple):
    """The metrics of a run."""

    score: MetricFacts
    personal: MetricFacts  # by which clients' own models are scored
    others: tuple[MetricFacts, ...]  # with a column of numbers each

    @property
    def every(self) -> tuple[MetricFacts, ...]:
        """The score and the others."""
        return (self.score, *self.others)


OLD = Scores(ACCURACY, ACCURACY, (MetricFacts("top5", "high", SHARE),))  # of folders that do not say it


def scores_in(about: dict[str, Any]) -> Scores:
    """The metrics by experiment.json; raises ValueError, KeyError or TypeError where it is damaged."""
    told = about.get("score")
    if told is None:
        return OLD
    score = _metric(told)
    metrics = {one.name: one for one in map(_metric, told.get("metrics", [])) if one.name != PER_CLASS}
    others = tuple(one for name, one in metrics.items() if name != score.name)
    own = str(told.get("personal") or LOSS.name)
    return Scores(
        score, ({"loss": LOSS} | metrics | {score.name: score}).get(own, MetricFacts(own, "high", ANY)), others
    )


def _metric(told: dict[str, Any]) -> MetricFacts:
    """A metric as JSON has it; a limit that is null is infinite."""
    if told["best"] not in ("high", "low"):
        raise ValueError(f"best of score {told['name']} is {told['best']}")
    low, high = told.get("limits") or (None, None)
    limits = (-inf if low is None else float(low), inf if high is None else float(high))
    return MetricFacts(str(told["name"]), told["best"], limits)


def names_in(about: dict[str, Any], key: str) -> list[str]:
    """The names of clients or classes by their numbers, short and each different; empty if they have none."""
    told = about.get(key)
    return shortened([str(name) for name in told]) if isinstance(told, list) else []


def class_names(folder: Path | None) -> list[str]:
    """The names of classes in a run folder; empty if there are none or no folder."""
    try:
        return [] if folder is None else names_in(read_json(folder / "experiment.json"), CLASSES)
    except (OSError, ValueError):
        return []


def name_of(names: Sequence[str], number: int) -> str:
    """The name of a client or class, or its number where it has none."""
    return names[number] if number < len(names) else str(number)
