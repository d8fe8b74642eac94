"""Which method is better? Several on the same data, fleet, world and seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedloom.errors import BadExperiment
from fedloom.evaluate.targets import Cost, Interval, interval, spent, to_target
from fedloom.experiment import Experiment
from fedloom.run import Result, run


@dataclass(frozen=True)
class Contender:
    """One method's runs, a result for every seed."""

    name: str
    results: tuple[Result, ...]

    def accuracy(self) -> Interval:
        """Final accuracy over the seeds."""
        return interval([result.accuracy or 0.0 for result in self.results])

    def best(self) -> Interval:
        """The best accuracy of each run, over the seeds."""
        return interval([result.summary()["best_accuracy"] or 0.0 for result in self.results])

    def reached(self, target: float) -> list[Cost]:
        """The cost of the target for every seed that reached it."""
        found = [to_target(result.rounds, target) for result in self.results]
        return [cost for cost in found if cost is not None]

    def spent(self) -> list[Cost]:
        """The cost of the whole run, for every seed."""
        return [spent(result.rounds, len(result.rounds)) for result in self.results]


def cost_of(costs: Sequence[Cost], what: str) -> Interval | None:
    """One kind of cost over the seeds; None where there is none or the world does not say."""
    values = [getattr(cost, what) for cost in costs]
    return None if not values or any(value is None for value in values) else interval(values)


def compare(
    experiments: dict[str, Experiment],
    seeds: Sequence[int],
    watch: Callable[[str, int, dict[str, Any]], None] | None = None,
) -> list[Contender]:
    """Run every experiment under every seed; each seed deals the same data and draws the same world for all.

    Args:
        experiments: by the name to show; they should differ in method and settings only.
        seeds: the seeds to run each with.
        watch: called with name, seed and row after every round.
    """
    if not experiments or not seeds:
        raise BadExperiment(f"compare got {len(experiments)} experiments and {len(seeds)} seeds; it needs one of each.")
    contenders = []
    for name, experiment in experiments.items():
        results = []
        for seed in seeds:
            seeded = Experiment(**{**experiment.model_dump(), "seed": seed})
            tell = None if watch is None else (lambda row, name=name, seed=seed: watch(name, seed, row))
            results.append(run(seeded, watch=tell))
        contenders.append(Contender(name, tuple(results)))
    return contenders
