"""Expected time of recipes: rounds times examples times a network's measured time for one example.

H200: 100 clients a round take 3.9 ms for 2nn, 34 ms for cnn1, 42 ms for cnn2 and 253 ms for ResNet-20 in our
benchmarks. Two CPU cores: 10 clients of 2nn take 60 ms. The other networks' times follow from their multiplications.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fedloom.runs.experiment import Experiment
from fedloom.studies.recipes.recipe import Recipe, changed
from fedloom.studies.recipes.runner import groups_of
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
    step: float = 4e-4  # least seconds of a step on a GPU, however few the clients


SPEEDS = {
    "linear": Speed(3e-8, 2e-6, 1e-4), "mlp": Speed(6e-8, 5e-6, 1e-4), "2nn": Speed(5e-8, 1e-5, 1e-4),
    "ra-mlp": Speed(1e-7, 9e-6, 1e-4), "fasttext": Speed(3e-7, 2e-5, 2e-4), "cnn1": Speed(5.8e-7, 1.5e-4),
    "cnn2": Speed(9.1e-7, 3e-4), "ra-cnn": Speed(6e-7, 1.5e-4), "spu-cifar": Speed(6e-7, 1.5e-4),
    "spu-emnist": Speed(8e-7, 2e-4), "spu-speech": Speed(8e-7, 1e-4), "cnn-mcmahan": Speed(8e-6, 2e-3),
    "cnn-feddc": Speed(1e-5, 3e-3), "resnet20": Speed(1.4e-5, 7e-3), "resnet18": Speed(1.5e-4, 8e-2),
}  # fmt: skip
UNEQUAL = Speed(2e-5, 1e-2)  # FedDD's models of unequal size
FORWARD = 0.3  # an evaluated example in trained ones
SETUP = {"cpu": 0.3, "cuda": 0.05}  # seconds to prepare a run whose data are loaded
ROUND = 2e-3  # seconds a round on a GPU, without training
START = {"cpu": 3.0, "cuda": 7.0}  # seconds of a command: imports, data, kernels


class Load(NamedTuple):
    """A run's work: what it takes of one H200, and of two CPU cores."""

    rounds: int
    busy: float  # seconds a round that a GPU computes, whatever else is trained
    least: float  # seconds a round that a GPU's steps take at least, shared by runs trained together
    own: float  # seconds on a GPU that are not shared
    cpu: float  # seconds on two cores


def load(experiment: Experiment) -> Load:
    """The work of a run."""
    method = experiment.build_method()
    train, test = EXAMPLES.get(experiment.data.name, EXAMPLES["mnist"])
    train = round(train * experiment.split[0])
    cohort, work = method.cohort_size(experiment.clients), method.work
    steps: float = work.steps or work.epochs * (train / experiment.clients / (work.batch or train))
    trained = cohort * (steps * work.batch if work.steps else work.epochs * train / experiment.clients)
    speed = SPEEDS.get(experiment.model.name, UNEQUAL)
    rounds, scored = experiment.rounds, FORWARD * test / experiment.evaluate_every
    own = SETUP["cuda"] + rounds * (ROUND + scored * speed.gpu)
    cpu = SETUP["cpu"] + rounds * speed.cpu * (trained + scored)
    return Load(rounds, trained * speed.gpu, steps * speed.step, own, cpu)


def runs_of(recipes: Iterable[Recipe], seeds: Iterable[int]) -> dict[str, Experiment]:
    """All runs that recipes ask for, each once, by key; those that choose rates first."""
    seeds, found = list(seeds), dict[str, Experiment]()
    for recipe in recipes:
        seeded = [changed(one, seed=seed) for one in recipe.asked.values() for seed in seeds]
        found |= {key_of(one): one for one in (*(run for tuning in recipe.trials for run in tuning.runs), *seeded)}
    return found


def expected(recipes: Iterable[Recipe], seeds: Iterable[int], device: str) -> float:
    """Seconds for all runs and for the start; on a GPU runs of one group are trained together."""
    runs = runs_of(recipes, seeds)
    if device == "cpu":
        return START["cpu"] + sum(load(one).cpu for one in runs.values())
    total = START["cuda"]
    for group in groups_of(runs.items()):
        loads = [load(one) for _, one in group]
        busy, least = sum(one.busy for one in loads), max(one.least for one in loads)
        total += sum(one.own for one in loads) + max(one.rounds for one in loads) * max(busy, least)
    return total
