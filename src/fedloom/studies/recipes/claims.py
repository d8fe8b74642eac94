"""Verdicts on claims: plain functions from the numbers of runs, with intervals over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, isnan, nan
from typing import Any, NamedTuple

from fedloom.evaluate.targets import Interval, interval
from fedloom.studies.recipes.measure import Runs, measured, unit
from fedloom.studies.recipes.recipe import NEVER, Claim, Measure

REPRODUCED, DIRECTION, NOT, UNTRIED = "reproduced", "direction only", "not reproduced", "not run"
VERDICTS = (REPRODUCED, DIRECTION, NOT, UNTRIED)
CONTROLS = {REPRODUCED: "holds", DIRECTION: "unsure", NOT: "does not hold", UNTRIED: UNTRIED}  # words for controls


class Finding(NamedTuple):
    """A claim, its value for each seed, and the verdict."""

    claim: Claim
    values: tuple[float, ...]  # one per seed; infinite: never reached, NaN: reached by neither of two
    verdict: str
    alone: bool = False  # runs of one seed alone exist, of several that were asked for

    @property
    def found(self) -> Interval | None:
        """Mean and interval; None unless the values of all seeds are finite."""
        finite = [value for value in self.values if isfinite(value)]
        return interval(finite) if finite and len(finite) == len(self.values) else None

    def record(self) -> dict[str, Any]:
        """The finding for JSON, which has no infinity."""
        claim, found = self.claim, self.found
        return {
            "what": claim.what, "of": list(claim.of), "against": list(claim.against), "measure": claim.measure.what,
            "unit": unit(claim.measure), "how": claim.how, "sign": claim.sign, "control": claim.control,
            "paper": "never" if claim.paper == NEVER else claim.paper, "tolerance": claim.tolerance,
            "values": [as_json(value) for value in self.values],
            "mean": None if found is None else found.mean, "half": None if found is None else found.half,
            "verdict": verdict_of(self),
        }  # fmt: skip


def as_json(value: float) -> float | str:
    """A finite number, or a word."""
    return value if isfinite(value) else "neither" if isnan(value) else "never"


def verdict_of(finding: Finding) -> str:
    """The verdict in words; controls have words of their own, since no paper claims them."""
    return CONTROLS[finding.verdict] if finding.claim.control else finding.verdict


def values_of(claim: Claim, runs: Runs, facts: dict[str, float], seeds: Sequence[int]) -> tuple[float, ...]:
    """The claim's number for each seed whose runs all exist."""
    found = []
    for seed in seeds:
        ours = _mean(runs, facts, claim.of, seed, claim.measure)
        if claim.how == "value":
            found.append(ours)
            continue
        theirs = _mean(runs, facts, claim.against, seed, claim.measure)
        found.append(None if ours is None or theirs is None else _compared(claim, ours, theirs))
    return tuple(value for value in found if value is not None)


def _mean(runs: Runs, facts: dict[str, float], labels: Sequence[str], seed: int, measure: Measure) -> float | None:
    each = [measured(runs, facts, label, seed, measure) for label in labels]
    known = [value for value in each if value is not None]
    return sum(known) / len(known) if known and len(known) == len(each) else None


def _compared(claim: Claim, ours: float, theirs: float) -> float:
    """The difference or ratio of two numbers; NaN if neither is finite."""
    if not isfinite(ours) and not isfinite(theirs):
        return nan
    if claim.how == "difference":
        return ours - theirs
    return ours / theirs if theirs else nan


def judge(claim: Claim, values: Sequence[float]) -> str:
    """One of `VERDICTS`.

    With a direction: reproduced if the mean lies in it, if the interval leaves out "no difference" (one seed has no
    interval and passes), and if the mean is within the tolerance of the paper's number, where the paper gives one;
    direction only if the mean lies in it but one of the others fails. Without a direction: reproduced within the
    tolerance, else not; direction only if a comparison's interval is more than twice as wide as the tolerance.
    """
    if not values:
        return UNTRIED
    if claim.paper == NEVER and claim.how == "value":
        return REPRODUCED if all(value == NEVER for value in values) else NOT
    if any(isnan(value) for value in values):
        return NOT
    mean = sum(values) / len(values)
    wanted = claim.nothing if claim.paper is None else claim.paper
    near = isfinite(mean) and abs(mean - wanted) <= claim.tolerance + 1e-9
    half = interval(list(values)).half if isfinite(mean) else None
    if claim.sign == "equal":
        vague = claim.how != "value" and half is not None and half > 2 * claim.tolerance
        return (DIRECTION if vague else REPRODUCED) if near else NOT
    if not (mean > claim.nothing if claim.sign == "above" else mean < claim.nothing):
        return NOT
    sure = half is None or abs(mean - claim.nothing) > half
    return REPRODUCED if sure and (claim.paper is None or near) else DIRECTION


def findings(
    claims: Sequence[Claim], runs: Runs, facts: dict[str, float], seeds: Sequence[int], short: bool = False
) -> list[Finding]:
    """All claims with their verdicts.

    If runs are `short`, a target that they did not reach is not judged, since longer runs might have reached it. If
    runs of one seed alone exist, of several that were asked for, the verdict is at most `direction only`.
    """
    found = []
    for claim in claims:
        values = values_of(claim, runs, facts, seeds)
        judged, late = judge(claim, values), not all(isfinite(value) for value in values)
        against, alone = judged == NOT or claim.paper == NEVER, len(values) == 1 < len(seeds)
        judged = UNTRIED if short and late and against else DIRECTION if alone and judged == REPRODUCED else judged
        found.append(Finding(claim, values, judged, alone))
    return found


def count_verdicts(found: Sequence[Finding]) -> dict[str, int]:
    """Number of the papers' claims by verdict, without controls."""
    return {one: sum(f.verdict == one for f in found if not f.claim.control) for one in VERDICTS}
