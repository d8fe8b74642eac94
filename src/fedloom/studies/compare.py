"""Comparison of methods on the same data, fleet, world and seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

from fedloom.core.metric import Metric
from fedloom.errors import BadExperiment
from fedloom.evaluate.targets import Cost, Interval, interval, spent, to_target
from fedloom.runs.experiment import Experiment
from fedloom.runs.result import Result
from fedloom.runs.watch import Tell, Watch
from fedloom.studies.checks import check_all
from fedloom.studies.played import Job, folders_for, play_all


@dataclass(frozen=True)
class Contender:
    """One method's runs, a result per seed."""

    name: str
    results: tuple[Result, ...]

    @property
    def metric(self) -> Metric:
        """The metric that is the score."""
        return self.results[0].goal.score

    def score(self) -> Interval:
        """The final score over seeds; NaN if a seed has none that is finite."""
        return interval([nan if result.score is None else result.score for result in self.results])

    def best(self) -> Interval:
        """The best score of each run, over seeds; NaN if a seed has none that is finite."""
        return interval([nan if result.best_score is None else result.best_score for result in self.results])

    @property
    def asked(self) -> float:
        """How many clients it asked in a round, on average."""
        counts = [row["clients"] for result in self.results for row in result.rounds]
        return float(sum(counts) / len(counts))

    def costs(self, target: float | None) -> list[Cost | None]:
        """The cost of the target per seed, None where it was missed; without a target, of the whole run."""
        if target is None:
            return [spent(result.rounds, len(result.rounds)) for result in self.results]
        return [to_target(result.rounds, target, self.metric.best) for result in self.results]

    def reached(self, target: float | None) -> list[Cost]:
        """The cost of the target for the seeds that reached it."""
        return [cost for cost in self.costs(target) if cost is not None]


def ratio_of(ours: Contender, theirs: Contender, target: float | None, what: str) -> Interval | None:
    """Ratio of one kind of cost, over the seeds under which both reached the target; None if it is not known."""
    pairs = [(a, b) for a, b in zip(ours.costs(target), theirs.costs(target)) if a is not None and b is not None]
    values = [(getattr(a, what), getattr(b, what)) for a, b in pairs]
    if not values or any(a is None or not b for a, b in values):
        return None
    return interval([a / b for a, b in values])


@dataclass(frozen=True)
class Paired:
    """The mean difference of scores seed by seed, half the width of its 95 % interval, and a two-sided p-value."""

    mean: float
    half: float | None
    p: float | None


def paired(ours: Contender, theirs: Contender) -> Paired | None:
    """Our final score less theirs, over the seeds (Student's t); None where a seed has no finite score."""
    pairs = [(a.score, b.score) for a, b in zip(ours.results, theirs.results)]
    values = [a - b for a, b in pairs if a is not None and b is not None]
    if len(values) < len(pairs):
        return None
    found = interval(values)
    if found.half is None:
        return Paired(found.mean, None, None)
    from scipy.special import stdtr, stdtrit  # imported here, since it loads slowly

    free = found.seeds - 1
    error = found.half / float(stdtrit(free, 0.975))
    if error == 0:
        return Paired(found.mean, 0.0, 1.0 if found.mean == 0 else 0.0)
    return Paired(found.mean, found.half, 2 * float(stdtr(free, -abs(found.mean) / error)))


def significant(contenders: Sequence[Contender], level: float = 0.05) -> list[bool]:
    """Whether each differs from the first at this level, all comparisons together (Holm's correction)."""
    found = [paired(one, contenders[0]) for one in contenders[1:]]
    values = sorted((own.p, place) for place, own in enumerate(found) if own is not None and own.p is not None)
    marked = [False] * len(contenders)
    for rank, (p, place) in enumerate(values):
        if p > level / (len(values) - rank):
            break
        marked[place + 1] = True
    return marked


def compare(
    experiments: dict[str, Experiment],
    seeds: Sequence[int],
    watch: Callable[[str, int, dict[str, Any]], None] | None = None,
    stack: bool = True,
    tell: Tell | None = None,
    out: str | Path | None = None,
) -> list[Contender]:
    """Run each experiment under each seed; a seed gives all experiments the same partition and world.

    All are checked before the first is trained.

    Args:
        experiments: by the name to show; they should differ in method and settings only.
        seeds: the seeds to run each with.
        watch: called with name, seed and row after each round.
        stack: train runs of one kind together, which is faster; False runs one after another.
        tell: called with notes on which runs are trained together.
        out: a folder for the run folders; runs in it that are finished are read, and others go on.
    """
    if not experiments or not seeds:
        raise BadExperiment(f"compare got {len(experiments)} experiments and {len(seeds)} seeds; it needs one of each.")
    experiments = on_one_fleet(experiments, tell)
    check_all(experiments)
    runs = [(name, seed) for name in experiments for seed in seeds]
    seeded = [Experiment(**{**experiments[name].model_dump(), "seed": seed}) for name, seed in runs]
    folders = folders_for([f"{name}-seed-{seed}" for name, seed in runs], None if out is None else Path(out))
    jobs = [Job(*each) for each in zip(seeded, [_watch_of(watch, *each) for each in runs], folders)]
    results = iter(play_all(jobs, stack, tell))
    return [Contender(name, tuple(next(results) for _ in seeds)) for name in experiments]


def on_one_fleet(experiments: dict[str, Experiment], tell: Tell | None = None) -> dict[str, Experiment]:
    """The experiments, with the devices of those that brought some for those that have none."""
    fleets = [one.fleet for one in experiments.values() if one.fleet.name != "none"]
    names = list(dict.fromkeys(fleet.name for fleet in fleets))
    if len(names) > 1 and tell is not None:
        tell(
            f"not on one fleet, which is no comparison: {', '.join(names)}; name one for all, as in --fleet {names[0]}"
        )
    without = [name for name, one in experiments.items() if one.fleet.name == "none"]
    if not fleets or not without:
        return experiments
    if tell is not None:
        tell(f"on fleet '{fleets[0].name}', as the others: {', '.join(without)}")
    return {
        name: Experiment(**{**one.model_dump(), "fleet": fleets[0].model_dump()}) if name in without else one
        for name, one in experiments.items()
    }


def _watch_of(watch: Callable[[str, int, dict[str, Any]], None] | None, name: str, seed: int) -> Watch | None:
    """The watch of one run."""
    return None if watch is None else (lambda row: watch(name, seed, row))
