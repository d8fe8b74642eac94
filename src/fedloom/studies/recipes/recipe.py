"""A recipe: a table or figure of a paper as a value, with its experiments and the paper's claims about them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Literal, NamedTuple

from fedloom.errors import BadExperiment
from fedloom.runs.experiment import Experiment

NEVER = inf  # rounds to a target that was not reached; a star in the papers' tables
TUNING_SEED = 1000  # of the runs that choose rates; its results are not reported

How = Literal["value", "difference", "ratio"]
Sign = Literal["above", "below", "equal"]


class Measure(NamedTuple):
    """One number of one run; `what` is a name in `measure.MEASURES`."""

    what: str = "accuracy"
    at: float | None = None  # the accuracy to reach, in per cent
    labels: tuple[int, ...] = ()  # classes
    baseline: str | None = None  # the run to compare with


@dataclass(frozen=True)
class Claim:
    """A paper's statement about runs: a number, a difference or a ratio, its direction and a tolerance.

    Labels are those of the recipe's experiments; several labels stand for their mean. A difference is `of - against`, a
    ratio `of / against`, both per seed.
    """

    what: str
    of: tuple[str, ...]
    measure: Measure = Measure()
    against: tuple[str, ...] = ()
    how: How = "value"
    sign: Sign = "equal"
    paper: float | None = None  # None: the paper gives a direction only
    tolerance: float = 0.0  # around the paper's number, or else around "no difference"
    control: bool = False  # a comparison that the paper lacks
    ran: float = inf  # the paper's rounds, in which a target was never reached
    fitted: bool = False  # a setting of the recipe was chosen by these runs, which are then no evidence

    @property
    def nothing(self) -> float:
        """The value of the comparison if there is no difference."""
        return 1.0 if self.how == "ratio" else 0.0

    @property
    def margin(self) -> float:
        """The tolerance; around the number of a comparison with a direction at most half of the paper's effect."""
        if self.paper is None or self.sign == "equal":
            return self.tolerance
        return min(self.tolerance, abs(self.paper - self.nothing) / 2)

    @property
    def band(self) -> tuple[float, float] | None:
        """What agrees with the paper, or with "no difference"; None if only a direction is claimed."""
        if self.paper == NEVER:
            return self.ran + 1, inf
        if self.paper is None and self.sign != "equal":
            return None
        middle = self.nothing if self.paper is None else self.paper
        return middle - self.margin, middle + self.margin


class Tuning(NamedTuple):
    """A learning rate to choose: the experiment, mostly FedAvg, tries each, and runs with this prefix take the best."""

    prefix: str
    experiment: Experiment
    rates: tuple[float, ...]

    @property
    def runs(self) -> list[Experiment]:
        """The runs that choose the rate, one per candidate."""
        return [changed(self.experiment, training={"rate": rate}, seed=TUNING_SEED) for rate in self.rates]


@dataclass(frozen=True)
class Recipe:
    """Experiments by label, and claims about them."""

    name: str
    about: str
    experiments: dict[str, Experiment]
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()  # choices where the paper gives none
    tuning: tuple[Tuning, ...] = ()
    facts: dict[str, float] = field(default_factory=dict)  # label -> a number that needs no run
    columns: dict[str, Measure] = field(default_factory=dict)  # numbers to show of every run, by the head of a column
    quick: bool = False
    chosen: frozenset[str] | None = None  # labels to run; None: all

    def __post_init__(self) -> None:
        known = {*self.experiments, *self.facts}
        for claim in self.claims:
            named = (*claim.of, *claim.against, *([claim.measure.baseline] if claim.measure.baseline else []))
            for label in named:
                if label not in known:
                    raise BadExperiment(f"claim '{claim.what}' of recipe '{self.name}' is about unknown run '{label}'.")

    @property
    def asked(self) -> dict[str, Experiment]:
        """The experiments to run."""
        return {k: v for k, v in self.experiments.items() if self.chosen is None or k in self.chosen}

    @property
    def trials(self) -> tuple[Tuning, ...]:
        """The tunings that the experiments to run need."""
        return tuple(one for one in self.tuning if any(label.startswith(one.prefix) for label in self.asked))

    @property
    def data(self) -> list[str]:
        """The data sets that the experiments to run need."""
        return list(dict.fromkeys(one.data.name for one in self.asked.values()))


def changed(experiment: Experiment, **values: Any) -> Experiment:
    """The experiment with other values; those of `training` are merged into its own."""
    if values.keys() <= {"seed", "device"}:
        return experiment.model_copy(update=values)  # valid with any settings, so nothing is checked again
    old = experiment.model_dump()
    if "training" in values:
        values["training"] = {**old["training"], **values["training"]}
    return Experiment(**{**old, **values})


def scaled(recipe: Recipe, scale: float) -> Recipe:
    """The recipe with `scale` times the rounds, at least one."""
    if not 0 < scale <= 1:
        raise BadExperiment(f"scale is {scale}; it lies above 0 and at most at 1.")

    def less(one: Experiment) -> Experiment:
        return changed(one, rounds=max(1, round(one.rounds * scale)))

    if scale == 1:
        return recipe
    tuning = tuple(one._replace(experiment=less(one.experiment)) for one in recipe.tuning)
    return replace(recipe, experiments={k: less(v) for k, v in recipe.experiments.items()}, tuning=tuning)


def selected(recipe: Recipe, texts: Iterable[str]) -> Recipe:
    """The recipe with only those runs whose label has one of the texts, at its start or after a slash."""
    texts = tuple(texts)
    chosen = frozenset(label for label in recipe.experiments if any(f"/{text}" in f"/{label}" for text in texts))
    return replace(recipe, chosen=chosen) if texts else recipe


def tuned(recipe: Recipe, rates: dict[str, float]) -> Recipe:
    """The recipe with the chosen rate for each run whose label begins with a prefix."""

    def rated(label: str, one: Experiment) -> Experiment:
        found = [rate for prefix, rate in rates.items() if label.startswith(prefix)]
        return changed(one, training={"rate": found[0]}) if found else one

    return replace(recipe, experiments={label: rated(label, one) for label, one in recipe.experiments.items()})
