"""Was a claim reproduced? Plain functions from the numbers of runs to a verdict, with intervals over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, isnan, nan
from typing import Any, NamedTuple

from fedloom.evaluate.targets import Interval, interval
from fedloom.studies.recipes.measure import Runs, measured, unit
from fedloom.studies.recipes.recipe import NEVER, Claim, Measure

REPRODUCED, DIRECTION, NOT, UNTRIED = "reproduced", "direction only", "not reproduced", "not run"
VERDICTS = (REPRODUCED, DIRECTION, NOT, UNTRIED)
CONTROLS = {REPRODUCED: "holds", DIRECTION: "unsure", NOT: "does not hold", UNTRIED: UNTRIED}  # said of controls


class Finding(NamedTuple):
    """A claim, what was found for every seed, and the verdict."""

    claim: Claim
    values: tuple[float, ...]  # one a seed; infinite: never, NaN: neither of the two ever
    verdict: str
    alone: bool = False  # one seed's runs are there of several that were asked for

    @property
    def found(self) -> Interval | None:
        """Mean and interval; None where there is no finite value, or not for all seeds."""
        finite = [value for value in self.values if isfinite(value)]
        return interval(finite) if finite and len(finite) == len(self.values) else None

    def record(self) -> dict[str, Any]:
        """The same for machines; JSON has no infinity."""
        claim, found = self.claim, self.found
        return {
            "what": claim.what, "of": list(claim.of), "against": list(claim.against), "measure": claim.measure.what,
            "unit": unit(claim.measure), "how": claim.how, "sign": claim.sign, "control": claim.control,
            "paper": "never" if claim.paper == NEVER else claim.paper, "tolerance": claim.tolerance,
            "values": [plain(value) for value in self.values],
            "mean": None if found is None else found.mean, "half": None if found is None else found.half,
            "verdict": said(self),
        }  # fmt: skip


def plain(value: float) -> float | str:
    """A number, or a word for what is none."""
    return value if isfinite(value) else "neither" if isnan(value) else "never"


def said(finding: Finding) -> str:
    """The verdict in words; those of controls are other words, since no paper made them."""
    return CONTROLS[finding.verdict] if finding.claim.control else finding.verdict


def values_of(claim: Claim, runs: Runs, facts: dict[str, float], seeds: Sequence[int]) -> tuple[float, ...]:
    """The claim's number for every seed whose runs are all there."""
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
    """Their difference or ratio; NaN where neither is finite."""
    if not isfinite(ours) and not isfinite(theirs):
        return nan
    if claim.how == "difference":
        return ours - theirs
    return ours / theirs if theirs else nan


def verdict(claim: Claim, values: Sequence[float]) -> str:
    """One of `VERDICTS`.

    With a direction: reproduced if the mean lies so, surely (its interval leaves out "no difference"; one seed is taken
    at its word), and within the tolerance of the paper's number, if it gives one; direction only if it lies so, but not
    surely or not near enough. Without: reproduced within the tolerance, else not; where two are said to be alike and
    the interval is more than twice as wide as the tolerance, direction only.
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

    What `short` runs never reached they might have reached, and it is not judged. Where one seed's runs alone are there
    of several asked for, nothing is more than a direction.
    """
    found = []
    for claim in claims:
        values = values_of(claim, runs, facts, seeds)
        judged, late = verdict(claim, values), not all(isfinite(value) for value in values)
        against, alone = judged == NOT or claim.paper == NEVER, len(values) == 1 < len(seeds)
        judged = UNTRIED if short and late and against else DIRECTION if alone and judged == REPRODUCED else judged
        found.append(Finding(claim, values, judged, alone))
    return found


def counted(found: Sequence[Finding]) -> dict[str, int]:
    """How many of the papers' claims got which verdict; controls are not among them."""
    return {one: sum(f.verdict == one for f in found if not f.claim.control) for one in VERDICTS}
