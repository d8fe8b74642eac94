"""Values of a metric by its direction: which is best, which reach a target, which targets make sense."""

from __future__ import annotations

from collections.abc import Iterable
from math import floor, isfinite, log10
from typing import NamedTuple

from fedloom.core.metric import ANY, SHARE, Best, Limits, Metric
from fedloom.errors import BadExperiment
from fedloom.evaluate.wording import label_of

LADDER = (0.99, 0.98, 0.97, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)  # plain shares


class MetricFacts(NamedTuple):
    """A metric as run folders tell it: enough to judge values, not to compute them."""

    name: str
    best: Best
    limits: Limits


ACCURACY = MetricFacts("accuracy", "high", SHARE)
LOSS = MetricFacts("loss", "low", ANY)  # by which clients' own models are scored where no metric does it


def is_share(metric: Metric) -> bool:
    """Whether values lie between 0 and 1, so that they can be percentages."""
    return metric.limits == SHARE


def best_of(metric: Metric, values: Iterable[float]) -> float:
    """The best of at least one value."""
    return max(values) if metric.best == "high" else min(values)


def reaches(best: Best, value: float, target: float) -> bool:
    """Whether a value is as good as the target or better."""
    return value >= target if best == "high" else value <= target


def check_target(metric: Metric, target: float) -> None:
    """Refuse a target outside the metric's limits, or one that every model reaches."""
    low, high = metric.limits
    if is_share(metric):
        fits = 0 < target <= 1 if metric.best == "high" else 0 <= target < 1
        words = "lies above 0 and up to 1, such as 0.8"
        if metric.best == "low":
            words = "lies from 0 to below 1, such as 0.2"
    else:
        fits = isfinite(target) and low <= target <= high
        bounds = [f"{word} {bound:g}" for word, bound in (("at least", low), ("at most", high)) if isfinite(bound)]
        words = "is a number" + (f" of {' and '.join(bounds)}" if bounds else "")
    if not fits:
        raise BadExperiment(f"target is {target:g}; the {label_of(metric)} to reach {words}.")


def plain_target(metric: Metric, reached: float) -> float | None:
    """The best plain number that `reached` is as good as: of `LADDER` for high shares, else 1, 2 or 5 times 10^k."""
    if is_share(metric) and metric.best == "high":
        return next((target for target in LADDER if target <= reached), None)
    return plain_below(reached) if metric.best == "high" else 0.0 - plain_below(-reached)  # 0.0 -: never -0.0


def plain_below(value: float) -> float:
    """The largest number up to `value` that is 0, or 1, 2 or 5 times a power of ten, with either sign."""
    if value == 0:
        return 0.0
    power = floor(log10(abs(value)))
    ladder = [float(f"{sign}{digit}e{power + up}") for up in (-1, 0, 1) for digit in (1, 2, 5) for sign in ("", "-")]
    return max(number for number in ladder if number <= value)
