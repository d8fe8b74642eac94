"""Workloads by name, on synthetic data that need no download."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from fedloom.data.dataset import Dataset
from fedloom.data.sampling import stream
from fedloom.errors import BadExperiment, unknown
from fedloom.runs.experiment import Experiment

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
CLASSES, TEST = 10, 10_000
DISTINCT = 10_000  # examples that are drawn; larger pools repeat them, which costs kernels the same


@dataclass(frozen=True)
class Workload:
    """A fleet, a network and a method; `baseline` names the workload whose round times are divided by."""

    about: str
    model: str = "2nn"
    shape: tuple[int, ...] = GREY
    clients: int = 100
    per_round: int | None = 100  # None: the method takes everyone
    samples: int = 600  # examples per client
    batch: int = 50
    steps: int | None = None  # None: one epoch
    values: dict[str, Any] = field(default_factory=dict)  # other settings of the experiment
    baseline: str | None = None
    test: int = TEST  # examples on which the model is evaluated after each round

    def experiment(self, engine: str, device: str, seed: int) -> Experiment:
        """The workload as an experiment, without its data."""
        work = {"epochs": 1} if self.steps is None else {"steps": self.steps}
        model = {"name": self.model, "settings": {"norm": "group"} if self.model.startswith("resnet") else {}}
        values = {"method": "fedavg", **self.values, "partition": "iid", "model": model, "clients": self.clients}
        training = {"rate": 0.1, "batch": self.batch, **work, **self.values.get("training", {})}
        values |= {"training": training, "per_round": self.per_round, "engine": engine, "device": device, "seed": seed}
        return Experiment(**values)

    def data(self, seed: int) -> Dataset:
        """Noisy copies of one pattern per class: easy, so that training makes progress."""
        rng, pool = stream(seed, "bench"), self.clients * self.samples
        labels = rng.integers(0, CLASSES, min(DISTINCT, max(pool, self.test)))
        noise = rng.random((len(labels), prod(self.shape)), np.float32) - np.float32(0.5)
        patterns = (rng.random((CLASSES, prod(self.shape)), np.float32) < 0.1).astype(np.float32)
        x, rows = (noise + patterns[labels]).reshape(-1, *self.shape), np.arange(pool) % len(labels)
        return Dataset(
            "bench", x[rows], labels[rows], x[: self.test], labels[: self.test], None, None, CLASSES, 0
        )  # fmt: skip


def _method(name: str, about: str, per_round: int | None = 100, **values: Any) -> Workload:
    """W2 with another method; `per_round` is None for methods that take all clients."""
    return Workload(f"W2 with {about}", per_round=per_round, values={"method": name, **values}, baseline="W2")


CNN2: dict[str, Any] = {"model": "cnn2", "shape": COLOUR, "samples": 500}  # 10 steps
RESNET: dict[str, Any] = {"model": "resnet20", "shape": COLOUR, "samples": 200}  # 4 steps
SMALL: dict[str, Any] = {"samples": 50, "steps": 12}  # for large fleets: the same steps on less data

WORKLOADS: dict[str, Workload] = {
    "W1": Workload("10 of 100 clients, 784-200-200-10, 12 steps of 50", per_round=10),
    "W2": Workload("all 100 clients of W1"),
    "W3": Workload("W1 with cnn1", model="cnn1", per_round=10),
    "cnn1-100": Workload("W2 with cnn1", model="cnn1"),
    "cnn2-100": Workload("100 clients, cnn2 on 3x32x32, 10 steps of 50", **CNN2),
    "resnet20-10": Workload("10 of 100 clients, ResNet-20 with group norm, 4 steps of 50", per_round=10, **RESNET),
    "resnet20-100": Workload("100 clients, ResNet-20 with group norm, 4 steps of 50", **RESNET),
    "tiers-2nn": _method("fjord", "FjORD: sub-models of five sizes, cut"),
    "tiers-cnn2": Workload("cnn2-100 with FjORD", values={"method": "fjord"}, baseline="cnn2-100", **CNN2),
    "heterofl": _method("heterofl", "HeteroFL: five sizes, and a rule that scales them"),
    "fleet-1000": Workload("1,000 clients of W1", clients=1000, per_round=1000, baseline="W2"),
    "fleet-10000-100": Workload("W2's work by 100 of 10,000 clients", clients=10_000, baseline="W2", **SMALL),
    "fleet-10000-1000": Workload(
        "fleet-1000's work by 1,000 of 10,000", clients=10_000, per_round=1000, baseline="fleet-1000", **SMALL
    ),
    "feddd": _method("feddd", "FedDD", None, fleet="table4"),
    "safari": _method("safari", "SAFARI and its Adam", None),
    "safari-sgd": _method("safari", "SAFARI and SGD", None, training={"optimiser": "sgd"}),
    "ram-fed": _method("ram-fed", "RAM-Fed", None),
    "fedspu": _method("fedspu", "FedSPU"),
    "masked": _method("federated-dropout", "random sub-models, masked instead of cut", execution="masked"),
}
QUICK = ("W1", "W2", "W3")  # measured on a CPU by default


def chosen(names: Iterable[str], device: str) -> list[str]:
    """The workloads with these names, each after its baseline; `all` means all of them."""
    names = list(names) or (list(WORKLOADS) if device == "cuda" else list(QUICK))
    wanted: list[str] = []
    for name in names:
        if name != "all" and name not in WORKLOADS:
            raise BadExperiment(unknown("workload", name, ("all", *WORKLOADS)))
        for one in WORKLOADS if name == "all" else (name,):
            wanted += [*_baselines(one), one]
    return list(dict.fromkeys(wanted))


def _baselines(name: str) -> list[str]:
    """A workload's baseline, after that one's own."""
    baseline = WORKLOADS[name].baseline
    return [] if baseline is None else [*_baselines(baseline), baseline]
