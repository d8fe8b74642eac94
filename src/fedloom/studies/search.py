"""Searches of a space of settings: batches of points to try; each batch is answered with the points' scores."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from importlib.util import find_spec
from itertools import product
from math import isfinite
from typing import Any

from fedloom.core.metric import Best
from fedloom.data.sampling import stream
from fedloom.errors import BadExperiment, unknown
from fedloom.studies.space import Range, Space

Point = dict[str, Any]  # a value for each setting
Search = Generator[list[Point], Sequence[float], None]  # NaN: the point has no score
TRIES = 100  # draws for a point that was not drawn before


def grid(space: Space, trials: int | None, seed: int, best: Best) -> Search:
    """Every combination of the values."""
    ranges = [f"{key}={tried}" for key, tried in space.items() if isinstance(tried, Range)]
    if ranges:
        raise BadExperiment(
            f"{ranges[0]} is a range, and a grid needs values, as in {ranges[0].partition('=')[0]}=0.01,0.1; write "
            "them, or search otherwise: --search random --trials 20."
        )
    values = [tried for tried in space.values() if not isinstance(tried, Range)]
    every = [dict(zip(space, choice)) for choice in product(*values)]
    if trials is not None and trials < len(every):
        raise BadExperiment(
            f"trials is {trials}, and the grid has {len(every)} settings; leave trials out, or take --search random."
        )
    yield every


def at_random(space: Space, trials: int | None, seed: int, best: Best) -> Search:
    """`trials` points drawn evenly, each once; all of them where there are no more."""
    count = _count(trials, "random")
    draws = {key: stream(seed, f"sweep {key}") for key in space}  # the same numbers for every method that has the key
    found: list[Point] = []
    for _ in range(count):
        for _ in range(TRIES):
            point = {key: _drawn(tried, draws[key].random()) for key, tried in space.items()}
            if point not in found:
                found.append(point)
                break
        else:
            break
    yield found


def by_optuna(space: Space, trials: int | None, seed: int, best: Best) -> Search:
    """`trials` points, each asked of Optuna's sampler (TPE) once the one before is known."""
    if find_spec("optuna") is None:
        raise BadExperiment("search=optuna needs Optuna, which is not installed; pip install 'fedloom[tune]'.")
    import optuna

    count = _count(trials, "optuna")
    logging.getLogger("optuna").setLevel(logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed % 2**32)
    study = optuna.create_study(direction="maximize" if best == "high" else "minimize", sampler=sampler)
    for _ in range(count):
        trial = study.ask()
        (value,) = yield [{key: _asked(trial, key, tried) for key, tried in space.items()}]
        if isfinite(value):
            study.tell(trial, value)
        else:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)


SEARCHES: dict[str, Callable[[Space, int | None, int, Best], Search]] = {
    "grid": grid,
    "random": at_random,
    "optuna": by_optuna,
}


def search_of(name: str, space: Space, trials: int | None, seed: int, best: Best) -> Search:
    """The search of this name; a space without settings has one point."""
    if name not in SEARCHES:
        raise BadExperiment(unknown("search", name, SEARCHES))
    return SEARCHES[name](space, trials, seed, best) if space else grid(space, None, seed, best)


def _count(trials: int | None, search: str) -> int:
    """How many points are asked for."""
    if trials is None or trials < 1:
        given = "not given" if trials is None else str(trials)
        raise BadExperiment(f"trials is {given}; search={search} needs how many settings each method gets, as in 20.")
    return trials


def _drawn(tried: Any, place: float) -> Any:
    """The value of a setting at a place from 0 to below 1."""
    return tried.at(place) if isinstance(tried, Range) else tried[int(place * len(tried))]


def _asked(trial: Any, key: str, tried: Any) -> Any:
    """The value of a setting that a trial of Optuna suggests."""
    if not isinstance(tried, Range):
        return tried[trial.suggest_categorical(key, list(range(len(tried))))]  # its values must be plain
    if tried.whole:
        return trial.suggest_int(key, int(tried.low), int(tried.high), log=tried.by_log)
    return tried.at(trial.suggest_float(key, 0, 1))
