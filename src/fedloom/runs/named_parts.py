"""Checks, aggregates, paces and attacks that an experiment chooses by name, for any method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedloom.core.part import Admit, Aggregate
from fedloom.errors import BadExperiment, unknown
from fedloom.method import Method
from fedloom.parts.admit.bounded import Bounded
from fedloom.parts.admit.check import Several
from fedloom.parts.admit.finite import Finite
from fedloom.parts.admit.norm import Norm
from fedloom.parts.admit.part_asked import PartAsked, WithinShare
from fedloom.parts.admit.relative import TIMES, Relative
from fedloom.parts.admit.weight import Weight
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.aggregate.krum import Krum
from fedloom.parts.aggregate.private_mean import PrivateMean
from fedloom.parts.aggregate.ranked_mean import Median, TrimmedMean
from fedloom.runs.named_paces import PACES, STALES, refill_of, stale_of
from fedloom.runs.settings import fit, settings_of
from fedloom.world.attack import Attack, LabelFlip, Noise, Scaling, SignFlip

if TYPE_CHECKING:
    from fedloom.runs.experiment import Experiment


def careful(
    server_chooses: bool,
    pieces: bool,
    norm: float | None = None,
    beyond: float = 10.0,
    most: int | None = None,
    relative: float | None = TIMES,
) -> Several:
    """All checks: numbers that can be computed with, at most `most` examples, and the numbers that were asked for.

    A reply is at most `relative` times as long as the cohort's median, and an update at most as long as a `norm`.
    """
    checks: list[Admit] = [PartAsked(pieces) if server_chooses else WithinShare(), Bounded(), Weight(most)]
    checks += [] if relative is None else [Relative(relative)]
    checks += [] if norm is None else [Norm(norm, beyond)]
    return Several(tuple(checks))


AGGREGATES: dict[str, Callable[..., Aggregate]] = {
    "mean": CoverageMean,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "krum": Krum,
    "private": PrivateMean,
}
ADMITS: dict[str, Callable[..., Admit]] = {"everything": Several, "finite": Finite, "careful": careful}
ATTACKS: dict[str, type[Attack]] = {
    "sign-flip": SignFlip,
    "scaling": Scaling,
    "noise": Noise,
    "label-flip": LabelFlip,
}
TABLES: dict[str, dict[str, Any]] = {
    "aggregate": AGGREGATES,
    "admit": ADMITS,
    "pace": PACES,
    "stale": STALES,
    "attack": ATTACKS,
}
NONE = {**dict.fromkeys(TABLES, "own"), "attack": "none"}  # the names for no choice
FACTS = ("server_chooses", "pieces", "checks", "cohort", "probability", "work")  # facts of the experiment, not settings


def takes(kind: str, name: str) -> list[str]:
    """The settings of the part with this name."""
    return list(settings_of(TABLES[kind][name], FACTS)) if name in TABLES[kind] else []


def _chosen(kind: str, name: str, settings: dict[str, Any]) -> Callable[..., Any] | None:
    """A function that makes the part from facts, with its settings checked; None: nothing was chosen."""
    table, none = TABLES[kind], NONE[kind]
    if name == none:
        if settings:
            raise BadExperiment(f"{kind} is '{none}' and takes no settings; choose one of: {', '.join(sorted(table))}.")
        return None
    if name not in table:
        raise BadExperiment(unknown(kind, name, (none, *table)))
    fitted = fit(f"{kind} '{name}'", table[name], settings, FACTS)
    return lambda **facts: table[name](**fitted, **facts)


def with_parts(method: Method, experiment: Experiment) -> Method:
    """The method with the pace, the checks and the aggregate that the experiment names."""
    chosen, world = experiment.aggregate, experiment.world
    method = _with_pace(method, experiment)
    method = _with_admit(method, experiment.admit.name, experiment.admit.settings, world.pieces is not None)
    if chosen.name == "private" and (world.first or world.server_up or world.server_down):
        raise BadExperiment(
            "aggregate is 'private', but world.first, server_up and server_down let one client decide whether "
            "another's reply counts; leave them out."
        )
    return experiment.server.apply(_with_aggregate(method, chosen.name, chosen.settings))


def _with_pace(method: Method, experiment: Experiment) -> Method:
    """The method with another pace, and with another meaning of stale replies."""
    paced, staled = experiment.pace, experiment.stale
    settings = refill_of(method, paced.settings) if paced.name == "buffered" else paced.settings
    make, read = _chosen("pace", paced.name, settings), _chosen("stale", staled.name, staled.settings)
    pace = method.pace if make is None else make()
    stale = read() if read is not None else method.stale if make is None else stale_of(method, pace)
    return replace(method, pace=pace, stale=stale)


def _with_aggregate(method: Method, name: str, settings: dict[str, Any]) -> Method:
    """The method with another aggregate in place of its coverage mean."""
    make = _chosen("aggregate", name, settings)
    if make is None:
        return method
    if not method.aggregate.replaceable:
        raise BadExperiment(
            f"aggregate is '{name}', but the method's own, {type(method.aggregate.unstepped).__name__}, is what the "
            "method is about; only a coverage mean can be replaced by name."
        )
    drawn = method.select.drawn if name == "private" else None
    other = make(**({} if drawn is None else drawn._asdict()))
    return replace(method, aggregate=method.aggregate.replaced_by(other))


def _with_admit(method: Method, name: str, settings: dict[str, Any], pieces: bool) -> Method:
    """The method with other checks; `pieces`: replies may arrive in part."""
    make = _chosen("admit", name, settings)
    if make is None:
        return method
    facts = {"server_chooses": method.masks_known, "pieces": pieces} if name == "careful" else {}
    return replace(method, admit=method.admit.checked_by(make(**facts)))


def attack_of(name: str, settings: dict[str, Any]) -> Attack | None:
    """The attack as a value, or None."""
    make = _chosen("attack", name, settings)
    return None if make is None else make()
