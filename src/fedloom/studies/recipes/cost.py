"""How long will it take? Rounds times examples times what a network takes for one, from what was measured.

H200: 100 clients a round take 3.9 ms for 2nn, 34 ms for cnn1, 42 ms for cnn2 and 253 ms for ResNet-20 in our
benchmarks. Two CPU cores: 10 clients of 2nn take 60 ms. The other networks are reckoned from their multiplications.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fedloom.engine.storage.placement import cohort_of
from fedloom.runs.experiment import Experiment
from fedloom.runs.many_runs import kind_of
from fedloom.studies.recipes.recipe import TUNING_SEED, Recipe, changed
from fedloom.studies.recipes.store import key_of

EXAMPLES = {
    "digits": (1437, 360), "mnist": (60_000, 10_000), "fashion-mnist": (60_000, 10_000), "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000), "emnist": (651_000, 163_000), "emnist-letters-10": (48_000, 8_000),
    "speech-commands": (85_000, 11_000), "uci-har": (7_352, 2_947), "ag-news": (120_000, 7_600),
    "synthetic": (10_000, 2_000),
}  # fmt: skip


class Speed(NamedTuple):
    """Seconds to train on one example."""

    gpu: float
    cpu: float
    step: float = 4e-4  # on a GPU a step takes no less, however few the clients


SPEEDS = {
    "linear": Speed(3e-8, 2e-6, 1e-4), "mlp": Speed(6e-8, 5e-6, 1e-4), "2nn": Speed(5e-8, 1e-5, 1e-4),
    "ra-mlp": Speed(1e-7, 9e-6, 1e-4), "fasttext": Speed(3e-7, 2e-5, 2e-4), "cnn1": Speed(5.8e-7, 1.5e-4),
    "cnn2": Speed(9.1e-7, 3e-4), "ra-cnn": Speed(6e-7, 1.5e-4), "spu-cifar": Speed(6e-7, 1.5e-4),
    "spu-emnist": Speed(8e-7, 2e-4), "spu-speech": Speed(8e-7, 1e-4), "cnn-mcmahan": Speed(8e-6, 2e-3),
    "cnn-feddc": Speed(1e-5, 3e-3), "resnet20": Speed(1.4e-5, 7e-3), "resnet18": Speed(1.5e-4, 8e-2),
}  # fmt: skip
HET = Speed(2e-5, 1e-2)  # FedDD's models of unequal size
FORWARD = 0.3  # an example that is only looked at
SETUP = {"cpu": 0.3, "cuda": 0.05}  # a run's own, data at hand
ROUND = 2e-3  # of a run on a GPU, beside its training
START = {"cpu": 3.0, "cuda": 7.0}  # of a command: imports, data, kernels


class Load(NamedTuple):
    """A run's work on a GPU."""

    rounds: int
    busy: float  # seconds a round that the device needs, whoever else trains
    least: float  # seconds a round that steps take, shared by those trained together
    own: float  # seconds of its own


def load(experiment: Experiment) -> tuple[Load, float]:
    """What a run asks of one H200, and how long two CPU cores take for it."""
    method = experiment.build_method()
    train, test = EXAMPLES.get(experiment.data.name, EXAMPLES["mnist"])
    train = round(train * experiment.split[0])
    cohort, work = cohort_of(method, experiment.clients), method.work
    steps: float = work.steps or work.epochs * (train / experiment.clients / (work.batch or train))
    trained = cohort * (steps * work.batch if work.steps else work.epochs * train / experiment.clients)
    speed = SPEEDS.get(experiment.model.name, HET)
    looked = test / experiment.evaluate_every
    rounds, scored = experiment.rounds, FORWARD * looked
    own = SETUP["cuda"] + rounds * (ROUND + scored * speed.gpu)
    cpu = SETUP["cpu"] + rounds * speed.cpu * (trained + scored)
    return Load(rounds, trained * speed.gpu, steps * speed.step, own), cpu


def runs_of(recipes: Iterable[Recipe], seeds: Iterable[int]) -> dict[str, Experiment]:
    """All runs that recipes ask for, each once, by key; those that choose rates first."""
    seeds, found = list(seeds), {}
    for recipe in recipes:
        for tuning in recipe.trials:
            for rate in tuning.rates:
                one = changed(tuning.experiment, training={"rate": rate}, seed=TUNING_SEED)
                found[key_of(one)] = one
        for experiment in recipe.asked.values():
            for seed in seeds:
                one = changed(experiment, seed=seed)
                found[key_of(one)] = one
    return found


def expected(recipes: Iterable[Recipe], seeds: Iterable[int], device: str) -> float:
    """Seconds for all of them, and for the start; on a GPU those alike are trained together."""
    runs = list(runs_of(recipes, seeds).values())
    if device == "cpu":
        return START["cpu"] + sum(load(one)[1] for one in runs)
    groups: dict[str, list[Load]] = {}
    for one in runs:
        groups.setdefault(repr(kind_of(one, one.build_method())), []).append(load(one)[0])
    total = START["cuda"] + sum(one.own for group in groups.values() for one in group)
    for group in groups.values():
        most = max(one.rounds for one in group)
        total += most * max(max(one.least for one in group), sum(one.busy for one in group))
    return total
