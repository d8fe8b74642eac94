"""Verdicts on claims: plain functions from the numbers of runs, with intervals over seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, isfinite, isnan
from typing import Any, NamedTuple

from fedloom.evaluate.targets import Interval, interval
from fedloom.studies.recipes.measure import SPENT, Run, Runs, Span, mean_span, measured, unit
from fedloom.studies.recipes.recipe import NEVER, Claim, Measure, Recipe

REPRODUCED, DIRECTION, UNSURE = "reproduced", "direction only", "cannot tell"
STOPPED, NOT, FITTED, UNTRIED = "stopped early", "not reproduced", "fitted", "not run"
VERDICTS = (REPRODUCED, DIRECTION, UNSURE, STOPPED, NOT, FITTED, UNTRIED)
CONTROLS = {REPRODUCED: "holds", DIRECTION: "holds", UNSURE: "unsure", NOT: "does not hold"}  # words for controls
MEANINGS = {
    REPRODUCED: "the interval lies within the tolerance around the paper's number and on its side of no difference",
    DIRECTION: "the interval lies on the paper's side of no difference, but not within the tolerance",
    UNSURE: "the interval is too wide to say, or there is one seed",
    STOPPED: "runs ended before the recipe's rounds, which are the paper's where it gives them, and more rounds could "
    "change the verdict that stands behind it",
    NOT: "the interval lies outside the tolerance, or on the other side of no difference",
    FITTED: "a setting of the recipe was chosen by these runs",
    UNTRIED: "there are no runs",
}
EDGE = 1e-9  # for rounding


class Finding(NamedTuple):
    """A claim, its value for each seed, and the verdict."""

    claim: Claim
    values: tuple[Span, ...]  # one per seed
    verdict: str
    so_far: str | None = None  # what the verdict would be, had runs not been stopped early
    alone: bool = False  # runs of one seed alone exist, of several that were asked for

    @property
    def found(self) -> Interval | None:
        """Mean and interval; None unless the values of all seeds are known."""
        known = [value.low for value in self.values if value.known]
        return interval(known) if known and len(known) == len(self.values) else None

    def record(self) -> dict[str, Any]:
        """The finding for JSON, which has no infinity."""
        claim, found = self.claim, self.found
        return {
            "what": claim.what, "of": list(claim.of), "against": list(claim.against), "measure": claim.measure.what,
            "unit": unit(claim.measure), "how": claim.how, "sign": claim.sign, "control": claim.control,
            "paper": "never" if claim.paper == NEVER else claim.paper, "tolerance": claim.margin,
            "values": [as_json(value) for value in self.values],
            "mean": None if found is None else found.mean, "half": None if found is None else found.half,
            "verdict": verdict_of(self), "so_far": self.so_far,
        }  # fmt: skip


def as_json(value: Span) -> float | list[float | None] | None:
    """A number, the two that it lies between (None: no bound), or None if it is not known at all."""
    if value.known:
        return value.low
    return None if isnan(value.low) else [bound if isfinite(bound) else None for bound in value]


def verdict_of(finding: Finding) -> str:
    """The verdict in words; controls have words of their own, since no paper claims them."""
    control = finding.claim.control
    word = CONTROLS.get(finding.verdict, finding.verdict) if control else finding.verdict
    if finding.so_far is None:
        return word
    return f"{word}; so far: {CONTROLS.get(finding.so_far, finding.so_far) if control else finding.so_far}"


def values_of(claim: Claim, runs: Runs, facts: dict[str, float], seeds: Sequence[int]) -> tuple[Span, ...]:
    """The claim's number for each seed whose runs all exist."""
    found = []
    for seed in seeds:
        ours = _mean(runs, facts, claim.of, seed, claim.measure)
        theirs = ours if claim.how == "value" else _mean(runs, facts, claim.against, seed, claim.measure)
        if ours is None or theirs is None:
            continue
        found.append({"value": lambda a, b: a, "difference": Span.minus, "ratio": Span.over}[claim.how](ours, theirs))
    return tuple(found)


def _mean(runs: Runs, facts: dict[str, float], labels: Sequence[str], seed: int, measure: Measure) -> Span | None:
    each = [measured(runs, facts, label, seed, measure) for label in labels]
    known = [value for value in each if value is not None]
    return mean_span(known) if known and len(known) == len(each) else None


def range_of(values: Sequence[Span]) -> Span:
    """Where the value lies: the 95 % interval over seeds; all numbers if there is one seed alone.

    If a target was never reached, the range over seeds takes the interval's place, from the least to the largest that
    any seed's value may be.
    """
    if len(values) < 2 or any(isnan(value.low) or isnan(value.high) for value in values):
        return Span(-inf, inf)
    if not all(value.known for value in values):
        return Span(min(value.low for value in values), max(value.high for value in values))
    mean, half, _ = interval([value.low for value in values])
    return Span(mean - (half or 0.0), mean + (half or 0.0))


def judge(claim: Claim, where: Span) -> str:
    """The verdict for a value that lies somewhere in `where`; `MEANINGS` has the rule in words."""
    band = claim.band
    inside = band is not None and band[0] - EDGE <= where.low and where.high <= band[1] + EDGE
    outside = band is not None and (where.high < band[0] - EDGE or where.low > band[1] + EDGE)
    if claim.sign == "equal":
        return REPRODUCED if inside else NOT if outside else UNSURE
    above = claim.sign == "above"
    shown = where.low > claim.nothing if above else where.high < claim.nothing
    if shown:
        return REPRODUCED if inside or band is None else DIRECTION
    opposite = where.high <= claim.nothing if above else where.low >= claim.nothing
    return NOT if opposite or outside else UNSURE


def findings(recipe: Recipe, runs: Runs, seeds: Sequence[int], scale: float = 1.0) -> list[Finding]:
    """All claims with their verdicts, for runs of `scale` times the recipe's rounds."""
    found = []
    for claim in recipe.claims:
        values = values_of(claim, runs, recipe.facts, seeds)
        counted = all(label in recipe.facts for label in _labels(claim))
        verdict = judge(claim, range_of(values * 2 if counted else values)) if values else UNTRIED
        so_far = None
        if claim.fitted and values:
            verdict = FITTED
        elif values and _stopped(recipe, claim, runs, seeds, scale, verdict):
            so_far, verdict = verdict, STOPPED
        found.append(Finding(claim, values, verdict, so_far, alone=not counted and len(values) == 1 < len(seeds)))
    return found


def _stopped(recipe: Recipe, claim: Claim, runs: Runs, seeds: Sequence[int], scale: float, verdict: str) -> bool:
    """Whether more rounds might change the verdict.

    They do not change when a target was reached; so there only runs count that have not reached it, and only if they
    leave the verdict open.
    """
    for label in _labels(claim):
        for seed in seeds:
            run = runs.get((label, seed))
            if run is None or not was_cut(recipe, label, run, scale):
                continue
            if claim.measure.what not in SPENT:
                return True
            value = measured(runs, recipe.facts, label, seed, claim.measure)
            if verdict == UNSURE and value is not None and not value.known:
                return True
    return False


def was_cut(recipe: Recipe, label: str, run: Run, scale: float) -> bool:
    """Whether a run ended because of a smaller version's fewer rounds, and not by itself."""
    full = recipe.experiments[label].rounds
    return (recipe.quick or scale < 1) and len(run.rows) >= max(1, round(full * scale))


def _labels(claim: Claim) -> Iterator[str]:
    yield from (*claim.of, *claim.against, *([claim.measure.baseline] if claim.measure.baseline else []))


def count_verdicts(found: Sequence[Finding]) -> dict[str, int]:
    """Number of the papers' claims by verdict, without controls."""
    return {one: sum(f.verdict == one for f in found if not f.claim.control) for one in VERDICTS}
