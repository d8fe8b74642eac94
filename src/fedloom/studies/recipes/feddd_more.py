"""FedDD's other figures: models of unequal size (9, 10, 15, 17, 18, 20), other choices of rows (11 to 13), sweeps."""

from __future__ import annotations

from typing import Any

from fedloom.runs.experiment import Experiment
from fedloom.studies.recipes.feddd import (
    ALIKE,
    DEALS,
    KINDS,
    NOTES,
    RANDOM,
    RATES,
    SCHEMES,
    SELECTIONS,
    Kind,
    run,
    tuning,
    with_settings,
)
from fedloom.studies.recipes.recipe import Claim, Measure, Recipe, Sign, Tuning

LATE = Measure("late")
FAMILIES = ("het-a", "het-b")
DEALT = tuple(deal for deal in DEALS if deal != "rare")
UNEQUAL = (
    "FedAvg over unequal models is FedDD with nothing dropped and the whole model sent every round. FedCS and Oort"
    " choose clients of it, by the seconds of the model that each has and a budget of all models' sizes."
)
OTHERS = ("FedCS", "Oort")
QUICK = "smaller: the first data set and deal alone, a quarter of the rounds"


def _unequal(family: str, deal: str, quick: bool, **settings: Any) -> Experiment:
    """A run of FedDD over a family of models."""
    kind = Kind("cifar10", f"{family}-1", 5, 100)
    return run(kind, deal, with_settings("feddd", models=family, **settings), quick)


def _whole(family: str, deal: str, quick: bool) -> Experiment:
    """FedAvg over a family of models."""
    return _unequal(family, deal, quick, budget=1.0, every=1)


def _rivals(family: str, deal: str, quick: bool) -> dict[str, Experiment]:
    """FedDD, FedAvg, FedCS and Oort over a family of models, by name."""
    kind = Kind("cifar10", f"{family}-1", 5, 100)
    chosen = {name: run(kind, deal, with_settings(SCHEMES[name]["name"], models=family), quick) for name in OTHERS}
    return {"FedDD": _unequal(family, deal, quick), "FedAvg": _whole(family, deal, quick), **chosen}


def _rates(family: str, quick: bool) -> Tuning:
    return Tuning(f"{family}/", _whole(family, "non-iid-b", quick), RATES)


def _recipe(
    name: str, about: str, experiments: dict[str, Experiment], claims: list[Claim], chosen: tuple[Tuning, ...],
    quick: bool, *notes: str,
) -> Recipe:  # fmt: skip
    said = (*NOTES[:-1], *notes, *([QUICK] if quick else []))
    return Recipe(name, about, experiments, tuple(claims), said, chosen, quick=quick)


def _families(quick: bool) -> tuple[str, ...]:
    return FAMILIES[:1] if quick else FAMILIES


GAINS = {  # points of FedDD over the others where the text has them; 0: alike
    "het-a/iid": {"FedAvg": 0.0},
    "het-a/non-iid-a": {"Oort": 0.0, "FedCS": 17.5},
    "het-a/non-iid-b": {"FedAvg": -3.6, "Oort": 20.9, "FedCS": 17.2},
    "het-b/non-iid-a": {"Oort": 4.9, "FedCS": 30.6},
    "het-b/non-iid-b": {"Oort": 26.2, "FedCS": 33.6},
}


def fig9(quick: bool = False) -> Recipe:
    """Final accuracy over unequal models."""
    experiments: dict[str, Experiment] = {}
    claims: list[Claim] = []
    for family in _families(quick):
        for deal in ("non-iid-b",) if quick else DEALT:
            at = f"{family}/{deal}"
            experiments |= {f"{at}/{name}": one for name, one in _rivals(family, deal, quick).items()}
            if at == "het-a/non-iid-b":
                claims.append(Claim(f"{at}/FedDD", (f"{at}/FedDD",), LATE, paper=60.6, tolerance=5.0))
            for other, points in GAINS.get(at, {}).items():
                pair = (f"{at}/FedDD",), LATE, (f"{at}/{other}",)
                if points:
                    side: Sign = "above" if points > 0 else "below"
                    claims.append(Claim(f"{at}: FedDD over {other}", *pair, "difference", side, points, 3.0))
                else:
                    claims.append(Claim(f"{at}: FedDD as {other}", *pair, "difference", "equal", None, 2.0))
    chosen = tuple(_rates(family, quick) for family in _families(quick))
    about = "CIFAR-10, models of five sizes: final accuracy"
    return _recipe("feddd-fig9", about, experiments, claims, chosen, quick, UNEQUAL)


TIMES = {  # of FedDD's time relative to the others': the middle of what the text gives, and how wide
    "het-a": {"FedAvg": (0.2235, 0.1), "FedCS": (0.347, 0.182), "Oort": (0.326, 0.112)},
    "het-b": {"FedAvg": (0.2605, 0.15), "FedCS": (0.446, 0.1), "Oort": (0.5715, 0.2)},
}


def fig10(quick: bool = False) -> Recipe:
    """Virtual time to 40 and 50 % over unequal models."""
    experiments: dict[str, Experiment] = {}
    claims: list[Claim] = []
    for family in _families(quick):
        for deal in ("non-iid-b",) if quick else DEALT:
            at = f"{family}/{deal}"
            experiments |= {f"{at}/{name}": one for name, one in _rivals(family, deal, quick).items()}
            for target in (40, 50):
                time = Measure("seconds to", at=target)
                for other, ratio in TIMES[family].items():
                    what = f"{at}: FedDD's time to {target} % relative to {other}'s"
                    claims.append(Claim(what, (f"{at}/FedDD",), time, (f"{at}/{other}",), "ratio", "below", *ratio))
    chosen = tuple(_rates(family, quick) for family in _families(quick))
    about = "CIFAR-10, models of five sizes: virtual time to a target"
    return _recipe("feddd-fig10", about, experiments, claims, chosen, quick, UNEQUAL)


def _selections(name: str, data: str, best: tuple[str, ...], worst: tuple[str, ...], quick: bool) -> Recipe:
    """Rows by importance and by other criteria: importance wins under `best`, non-IID-b only against `worst`."""
    experiments: dict[str, Experiment] = {}
    claims: list[Claim] = []
    for deal in ("non-iid-b",) if quick else DEALT:
        at = f"{data}/{deal}"
        experiments[f"{at}/FedDD"] = run(KINDS[data], deal, SCHEMES["FedDD"], quick)
        for by, label in SELECTIONS.items():
            experiments[f"{at}/{label}"] = run(KINDS[data], deal, with_settings("feddd", select_by=by), quick)
            pair = (f"{at}/FedDD",), LATE, (f"{at}/{label}",)
            if deal in best and (label in worst or deal != "non-iid-b"):
                claims.append(Claim(f"{at}: FedDD over '{label}'", *pair, "difference", "above"))
            elif deal not in best:
                claims.append(Claim(f"{at}: FedDD as '{label}'", *pair, "difference", "equal", None, ALIKE))
        if data == "mnist" and deal == "non-iid-b":
            what = f"{at}: FedDD's rounds to 80 % relative to '{RANDOM}'"
            pair = (f"{at}/FedDD",), Measure("rounds to", at=80), (f"{at}/{RANDOM}",)
            claims.append(Claim(what, *pair, "ratio", "below"))
    return _recipe(name, f"{data}: which rows are sent", experiments, claims, tuning([data], quick), quick)


def fig11(quick: bool = False) -> Recipe:
    """Other choices of rows on MNIST."""
    return _selections("feddd-fig11", "mnist", ("non-iid-b",), ("FedDD, max", "FedDD, ordered"), quick)


def fig12(quick: bool = False) -> Recipe:
    """Other choices of rows on Fashion-MNIST."""
    return _selections("feddd-fig12", "fmnist", ("non-iid-b",), tuple(SELECTIONS.values()), quick)


def fig13(quick: bool = False) -> Recipe:
    """Other choices of rows on CIFAR-10."""
    return _selections("feddd-fig13", "cifar10", DEALT, tuple(SELECTIONS.values()), quick)


def fig15(quick: bool = False) -> Recipe:
    """Other choices of rows over unequal models."""
    experiments: dict[str, Experiment] = {}
    claims: list[Claim] = []
    for family in _families(quick):
        for deal in ("non-iid-b",) if quick else DEALT:
            at = f"{family}/{deal}"
            experiments[f"{at}/FedDD"] = _unequal(family, deal, quick)
            for by, label in SELECTIONS.items():
                experiments[f"{at}/{label}"] = _unequal(family, deal, quick, select_by=by)
                pair = (f"{at}/FedDD",), LATE, (f"{at}/{label}",)
                claims.append(Claim(f"{at}: FedDD over '{label}'", *pair, "difference", "above"))
    chosen = tuple(_rates(family, quick) for family in _families(quick))
    about = "CIFAR-10, models of five sizes: which rows are sent"
    return _recipe("feddd-fig15", about, experiments, claims, chosen, quick, UNEQUAL)


BUDGETS = (0.8, 0.6, 0.4, 0.2)
LOSSES = {"FedDD": (5.8, 5.7), "FedCS": (25.6, 21.9), "Oort": (22.65, 20.35)}  # middle and half of the text's range


def fig16(quick: bool = False) -> Recipe:
    """Accuracy by budget, from 80 to 20 %."""
    experiments: dict[str, Experiment] = {}
    claims: list[Claim] = []
    for data in ("mnist",) if quick else KINDS:
        for deal in ("non-iid-b",) if quick else ("non-iid-a", "non-iid-b"):
            at = f"{data}/{deal}"
            for scheme, (middle, wide) in LOSSES.items():
                for budget in BUDGETS:
                    made = with_settings(SCHEMES[scheme]["name"], budget=budget)
                    experiments[f"{at}/{scheme} {budget}"] = run(KINDS[data], deal, made, quick)
                what = f"{at}: what {scheme} loses from a budget of 80 % to 20 %"
                pair = (f"{at}/{scheme} 0.8",), LATE, (f"{at}/{scheme} 0.2",)
                claims.append(Claim(what, *pair, "difference", "above", middle, wide))
            for other in ("FedCS", "Oort"):
                what, pair = f"{at}: FedDD over {other} at 20 %", ((f"{at}/FedDD 0.2",), LATE, (f"{at}/{other} 0.2",))
                claims.append(Claim(what, *pair, "difference", "above"))
    about, chosen = "accuracy by budget", tuning(["mnist"] if quick else list(KINDS), quick)
    return _recipe("feddd-fig16", about, experiments, claims, chosen, quick)


def _swept(
    name: str, about: str, setting: str, values: tuple[float, ...], deals: tuple[str, ...], better: float, worse: float,
    paper: tuple[float | None, float], quick: bool,
) -> Recipe:  # fmt: skip
    """A sweep of one of FedDD's settings over unequal models."""
    experiments: dict[str, Experiment] = {}
    claims: list[Claim] = []
    for family in _families(quick):
        for deal in deals[:1] if quick else deals:
            at = f"{family}/{deal}"
            for value in values:
                experiments[f"{at}/{setting} {value:g}"] = _unequal(family, deal, quick, **{setting: value})
            what = f"{at}: {setting} {better:g} over {worse:g}"
            pair = (f"{at}/{setting} {better:g}",), LATE, (f"{at}/{setting} {worse:g}",)
            claims.append(Claim(what, *pair, "difference", "above", *paper))
    chosen = tuple(_rates(family, quick) for family in _families(quick))
    return _recipe(name, about, experiments, claims, chosen, quick, UNEQUAL)


def fig17(quick: bool = False) -> Recipe:
    """Accuracy by budget over unequal models, from 80 to 20 %, of FedDD alone."""
    about, deals = "CIFAR-10, models of five sizes: FedDD's accuracy by budget", ("non-iid-a", "non-iid-b")
    return _swept("feddd-fig17", about, "budget", BUDGETS, deals, 0.8, 0.2, (5.8, 5.7), quick)


def fig18(quick: bool = False) -> Recipe:
    """The weight of losses against latency in the allocation."""
    about = "CIFAR-10, models of five sizes: the penalty factor delta"
    return _swept("feddd-fig18", about, "delta", (0.0, 0.01, 0.1, 1.0), ("non-iid-a",), 0.1, 0.0, (None, 0.0), quick)


def fig19(quick: bool = False) -> Recipe:
    """Rounds between broadcasts of the whole model."""
    experiments: dict[str, Experiment] = {}
    claims: list[Claim] = []
    for deal in ("non-iid-b",) if quick else DEALT:
        at = f"cifar10/{deal}"
        for every in (1, 5, 10, 20):
            made = SCHEMES["FedDD"] if every == 5 else with_settings("feddd", every=every)
            experiments[f"{at}/h {every}"] = run(KINDS["cifar10"], deal, made, quick)
        pair = (f"{at}/h 1",), LATE, (f"{at}/h 20",)
        claims.append(Claim(f"{at}: h 1 over h 20", *pair, "difference", "above"))
    about = "CIFAR-10: rounds between broadcasts of the whole model"
    return _recipe("feddd-fig19", about, experiments, claims, tuning(["cifar10"], quick), quick)


def fig20(quick: bool = False) -> Recipe:
    """Rounds between broadcasts of the whole model over unequal models."""
    about = "CIFAR-10, models of five sizes: rounds between broadcasts of the whole model"
    return _swept("feddd-fig20", about, "every", (1, 5, 10, 20), ("non-iid-a",), 1, 20, (None, 0.0), quick)
