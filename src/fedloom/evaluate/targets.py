"""Costs to a target score: rounds, seconds, bytes and joules, with intervals over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, NamedTuple

from fedloom.core.costs import TRANSPORT
from fedloom.core.metric import Best
from fedloom.evaluate.judge import reaches

Rows = Sequence[dict[str, Any]]  # one per round, as in rounds.parquet


class Cost(NamedTuple):
    """The cost up to and including a round; None where the world does not simulate it."""

    rounds: float
    seconds: float | None
    bytes: float
    joules: float | None


def bytes_in(row: dict[str, Any]) -> float:
    """Bytes that links carried in a round: of messages, and of their transport where that is known."""
    moved: float = row["bytes_up"] + row["bytes_down"] + sum(row.get(name) or 0 for name in TRANSPORT)
    return moved


def spent(rows: Rows, until: int) -> Cost:
    """The cost of the first `until` rows."""

    def total(name: str) -> float | None:
        values = [row.get(name) for row in rows[:until]]
        return None if any(v is None for v in values) else float(sum(values))  # type: ignore[arg-type]

    moved = float(sum(map(bytes_in, rows[:until])))
    return Cost(until, total("virtual_seconds"), moved, total("joules"))


def score_in(row: dict[str, Any]) -> float | None:
    """A row's score; rows of old runs have accuracy alone."""
    score: float | None = row["score"] if "score" in row else row["accuracy"]
    return score


def to_target(rows: Rows, target: float, best: Best = "high") -> Cost | None:
    """The cost up to the first round whose score is the target or better; None if there is none."""
    for place, row in enumerate(rows):
        score = score_in(row)
        if score is not None and reaches(best, score, target):
            return spent(rows, place + 1)
    return None


class Interval(NamedTuple):
    """A mean over seeds and half the width of its 95 % interval (Student's t); None for a single seed."""

    mean: float
    half: float | None
    seeds: int


def interval(values: Sequence[float]) -> Interval:
    """The mean of at least one value, and its interval."""
    count, mean = len(values), sum(values) / len(values)
    if count < 2:
        return Interval(mean, None, count)
    from scipy.special import stdtrit  # imported here, since it loads slowly

    deviation = sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    return Interval(mean, float(stdtrit(count - 1, 0.975)) * deviation / sqrt(count), count)


def cost_of(costs: Sequence[Cost], what: str) -> Interval | None:
    """One kind of cost over seeds; None if there are no costs or the world does not simulate it."""
    values = [getattr(cost, what) for cost in costs]
    return None if not values or any(value is None for value in values) else interval(values)
