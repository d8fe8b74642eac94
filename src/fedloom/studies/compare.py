"""Comparison of methods on the same data, fleet, world and seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

from fedloom.core.metric import Metric
from fedloom.errors import BadExperiment
from fedloom.evaluate.targets import Cost, Interval, interval, spent, to_target
from fedloom.runs.experiment import Experiment
from fedloom.runs.many_runs import run_all
from fedloom.runs.result import Result
from fedloom.runs.watch import Watch


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


def compare(
    experiments: dict[str, Experiment],
    seeds: Sequence[int],
    watch: Callable[[str, int, dict[str, Any]], None] | None = None,
    stack: bool = True,
    tell: Callable[[str], None] | None = None,
) -> list[Contender]:
    """Run each experiment under each seed; a seed gives all experiments the same partition and world.

    Args:
        experiments: by the name to show; they should differ in method and settings only.
        seeds: the seeds to run each with.
        watch: called with name, seed and row after each round.
        stack: train runs of one kind together, which is faster; False runs one after another.
        tell: called with notes on which runs are trained together.
    """
    if not experiments or not seeds:
        raise BadExperiment(f"compare got {len(experiments)} experiments and {len(seeds)} seeds; it needs one of each.")
    experiments = on_one_fleet(experiments, tell)
    runs = [(name, seed) for name in experiments for seed in seeds]
    seeded = [Experiment(**{**experiments[name].model_dump(), "seed": seed}) for name, seed in runs]
    results = iter(run_all(seeded, [_watch_of(watch, *each) for each in runs], stack, tell))
    return [Contender(name, tuple(next(results) for _ in seeds)) for name in experiments]


def on_one_fleet(
    experiments: dict[str, Experiment], tell: Callable[[str], None] | None = None
) -> dict[str, Experiment]:
    """The experiments, with the devices that runs without a barrier, or that need some, bring for those without any."""
    barriers = [(one.fleet, one.build_method().pace.barrier) for one in experiments.values()]
    brought = sorted(((fleet, barrier) for fleet, barrier in barriers if fleet.name != "none"), key=lambda two: two[1])
    without = [name for name, one in experiments.items() if one.fleet.name == "none"]
    if not brought or not without:
        return experiments
    fleet, barrier = brought[0]
    if tell is not None:
        whose = "the runs that need devices" if barrier else "the runs without a barrier"
        tell(f"on fleet '{fleet.name}', as {whose}: {', '.join(without)}")
    return {
        name: Experiment(**{**one.model_dump(), "fleet": fleet.model_dump()}) if name in without else one
        for name, one in experiments.items()
    }


def _watch_of(watch: Callable[[str, int, dict[str, Any]], None] | None, name: str, seed: int) -> Watch | None:
    """The watch of one run."""
    return None if watch is None else (lambda row: watch(name, seed, row))
