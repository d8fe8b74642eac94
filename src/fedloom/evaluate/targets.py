"""What did it cost to get there? Rounds, seconds, bytes and joules to a target accuracy, with intervals over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, NamedTuple

Rows = Sequence[dict[str, Any]]  # one a round, as in rounds.parquet


class Cost(NamedTuple):
    """What was spent up to and with some round; None where the world does not say."""

    rounds: float
    seconds: float | None
    bytes: float
    joules: float | None


def spent(rows: Rows, until: int) -> Cost:
    """The cost of the first `until` rows."""

    def total(name: str) -> float | None:
        values = [row.get(name) for row in rows[:until]]
        return None if any(v is None for v in values) else float(sum(values))  # type: ignore[arg-type]

    moved = sum(row["bytes_up"] + row["bytes_down"] for row in rows[:until])
    return Cost(until, total("virtual_seconds"), float(moved), total("joules"))


def to_target(rows: Rows, target: float) -> Cost | None:
    """The cost of the first evaluated round that reached the target; None: it never did."""
    for place, row in enumerate(rows):
        if row["accuracy"] is not None and row["accuracy"] >= target:
            return spent(rows, place + 1)
    return None


class Interval(NamedTuple):
    """A mean over seeds and half the width of its 95 % interval (Student's t); None for a single seed."""

    mean: float
    half: float | None
    seeds: int


def interval(values: Sequence[float]) -> Interval:
    """The mean of at least one value, and how sure it is."""
    count, mean = len(values), sum(values) / len(values)
    if count < 2:
        return Interval(mean, None, count)
    from scipy.special import stdtrit  # only here: it takes a while to load

    deviation = sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    return Interval(mean, float(stdtrit(count - 1, 0.975)) * deviation / sqrt(count), count)


def cost_of(costs: Sequence[Cost], what: str) -> Interval | None:
    """One kind of cost over the seeds; None where there is none or the world does not say."""
    values = [getattr(cost, what) for cost in costs]
    return None if not values or any(value is None for value in values) else interval(values)
