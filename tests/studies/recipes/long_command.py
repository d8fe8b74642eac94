"""`fedloom` with one recipe more: two groups that are over at once, and two that never are."""

from __future__ import annotations

from fedloom.cli.main import main
from fedloom.runs.experiment import Experiment
from fedloom.studies.recipes.recipe import Claim, Recipe
from fedloom.studies.recipes.table import RECIPES


def endless(quick: bool = False) -> Recipe:
    """Digits."""
    common = {"clients": 6, "per_round": 3}
    experiments = {
        f"{length}/{method}": Experiment(**common, method=method, rounds=rounds, training={"epochs": 1, "rate": rate})
        for length, rounds, rate in (("short", 2, 0.1), ("long", 1_000_000, 0.2))  # of one rate would be of one group
        for method in ("fedavg", "fedprox")
    }
    return Recipe("endless", "digits", experiments, (Claim("value", ("short/fedavg",), paper=1.0),), quick=quick)


if __name__ == "__main__":
    RECIPES["endless"] = endless
    main()
