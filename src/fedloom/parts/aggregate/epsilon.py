"""What privacy does a run spend? By the `dp-accounting` package."""

from __future__ import annotations

from importlib import import_module
from math import exp
from typing import Any

from fedloom.errors import BadExperiment

STEP = 1e-3  # of the accountant's grid: epsilon comes out too high by less than 1 in 10,000, in a second instead of ten


def accounting() -> Any:
    """The package, which is an extra."""
    try:
        return import_module("dp_accounting")
    except ImportError:
        raise BadExperiment("a private mean needs the package dp-accounting: pip install 'fedloom[privacy]'.") from None


def spent(
    noise: float, delta: float, rounds: int, probability: float | None = None, clients: int = 0
) -> dict[str, float]:
    """Epsilon of so many rounds at this `delta`, as if everyone took part in all of them: no amplification.

    Where each client takes part by the toss of a coin, `epsilon_amplified` uses that too. The theorem is of cohorts
    that may be empty and ours never are, so half of delta is kept for that difference; if that is not enough, or if
    everyone takes part, there is no such figure.
    """
    found = {"epsilon": _epsilon(noise, delta, rounds, None), "delta": delta}
    if probability is not None and probability < 1:
        amplified = _epsilon(noise, delta / 2, rounds, probability)
        empty = rounds * (1 - probability) ** (clients - 1)  # how far the two kinds of cohorts can differ, at most
        if amplified < 700 and (1 + exp(amplified)) * empty <= delta / 2:
            found["epsilon_amplified"] = amplified
    return found


def _epsilon(noise: float, delta: float, rounds: int, probability: float | None) -> float:
    """By privacy loss distributions; one client more or less."""
    if rounds == 0:
        return 0.0
    dp = accounting()
    event = dp.GaussianDpEvent(noise)
    if probability is not None:
        event = dp.PoissonSampledDpEvent(probability, event)
    accountant = import_module("dp_accounting.pld").PLDAccountant(value_discretization_interval=STEP)
    accountant.compose(dp.SelfComposedDpEvent(event, rounds))
    return float(accountant.get_epsilon(delta))
