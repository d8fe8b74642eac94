"""Seeded random streams, checks of numbers, and proportional division, for splits, partitions and synthetic data."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.errors import BadExperiment

Ints = NDArray[np.int64]


def stream(seed: int, purpose: str) -> np.random.Generator:
    """A random generator for each pair of seed and purpose."""
    whole("seed", seed, 0)
    return np.random.default_rng([int(seed), *purpose.encode()])


def whole(name: str, value: object, low: int, high: int | None = None) -> int:
    """The value as an int; anything but a whole number from low to high is refused."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        result = int(value)
        if low <= result and (high is None or result <= high):
            return result
    span = f"of at least {low}" if high is None else f"from {low} to {high}"
    raise BadExperiment(f"{name} is {value!r}; expected a whole number {span}")


def number(name: str, value: object, low: float, high: float, *, above: bool = False) -> float:
    """The value as a float; anything but a number from low (or above it) to high is refused."""
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        inside = low < value if above else low <= value
        if inside and value <= high:
            return float(value)
    raise BadExperiment(f"{name} is {value!r}; expected a number {'above' if above else 'from'} {low:g} up to {high:g}")


def portion(total: int, weights: NDArray[Any]) -> Ints:
    """Integers in proportion to the weights, with sum `total` (largest remainders)."""
    quota = total * np.asarray(weights, np.float64) / max(float(np.sum(weights)), np.finfo(np.float64).tiny)
    count = np.floor(quota).astype(np.int64)
    most_owed = np.argsort(count - quota, kind="stable")
    count[most_owed[: total - int(count.sum())]] += 1
    return count


def by_label(codes: Ints, rng: np.random.Generator) -> list[Ints]:
    """The shuffled indices of each class; codes run from 0 without gaps."""
    mixed = rng.permutation(len(codes))
    order = mixed[np.argsort(codes[mixed], kind="stable")]
    return np.split(order, np.cumsum(np.bincount(codes))[:-1])


def held_out(labels: Ints, share: float = 0.2) -> NDArray[np.bool_]:
    """The test examples of a dataset without a test set: a fixed share of every class."""
    codes = np.unique(labels, return_inverse=True)[1]
    chosen = np.zeros(len(labels), bool)
    for indices in by_label(codes, stream(0, "held out")):
        size = len(indices)
        # a class of two or more is in both parts, a single example in training
        chosen[indices[: min(max(round(share * size), 1), size - 1)]] = True
    return chosen
