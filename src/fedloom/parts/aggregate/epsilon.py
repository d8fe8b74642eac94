"""The privacy that a run spends, computed by the `dp-accounting` package."""

from __future__ import annotations

from importlib import import_module
from math import exp
from typing import Any

from fedloom.errors import BadExperiment

STEP = 1e-3  # of the accountant's grid: epsilon is at most 0.01 % too high, and takes a second instead of ten


def accounting() -> Any:
    """Import the package, which is an extra."""
    try:
        return import_module("dp_accounting")
    except ImportError:
        raise BadExperiment("a private mean needs the package dp-accounting: pip install 'fedloom[privacy]'.") from None


def spent(
    noise: float, delta: float, rounds: int, probability: float | None = None, clients: int = 0
) -> dict[str, float]:
    """Epsilon of `rounds` rounds at this `delta`, as if every client took part in all of them: no amplification.

    Where each client takes part with a probability, `epsilon_amplified` uses that too. The theorem assumes cohorts
    that may be empty and ours never are, so half of delta is reserved for that difference; if that is not enough, or if
    every client takes part, this figure is left out.
    """
    found = {"epsilon": _epsilon(noise, delta, rounds, None), "delta": delta}
    if probability is not None and probability < 1:
        amplified = _epsilon(noise, delta / 2, rounds, probability)
        empty = rounds * (1 - probability) ** (clients - 1)  # at most how far the two kinds of cohorts differ
        if amplified < 700 and (1 + exp(amplified)) * empty <= delta / 2:
            found["epsilon_amplified"] = amplified
    return found


def _epsilon(noise: float, delta: float, rounds: int, probability: float | None) -> float:
    """Epsilon from privacy loss distributions, for neighbours that differ by one client."""
    if rounds == 0:
        return 0.0
    dp = accounting()
    event = dp.GaussianDpEvent(noise)
    if probability is not None:
        event = dp.PoissonSampledDpEvent(probability, event)
    accountant = import_module("dp_accounting.pld").PLDAccountant(value_discretization_interval=STEP)
    accountant.compose(dp.SelfComposedDpEvent(event, rounds))
    return float(accountant.get_epsilon(delta))
