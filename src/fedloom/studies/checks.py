"""Checks of all runs of a study before the first is trained, and notes on where they differ in more than the method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from fedloom.core.optimiser import Optimiser
from fedloom.data.dataset import Dataset
from fedloom.errors import FedloomError, RunStopped
from fedloom.method import Method
from fedloom.report.group import plain
from fedloom.runs.dealing import dataset_of
from fedloom.runs.experiment import Experiment
from fedloom.runs.inputs import Inputs, inputs_of
from fedloom.studies.forms import takes

SHARED = ("data", "goal", "augment", "model", "device", "memory", "execution", "chunk")  # of runs that share examples
MEANT = ("rate", "decay", "weight_decay", "momentum", "clip")  # settings whose meaning depends on the optimiser


@contextmanager
def named(name: str) -> Iterator[None]:
    """Put the name of a method or candidate before the text of an error."""
    try:
        yield
    except RunStopped:
        raise
    except FedloomError as problem:
        text = str(problem)
        raise problem if text.startswith(f"{name}: ") else type(problem)(f"{name}: {text}") from None


def check_all(experiments: Mapping[str, Experiment]) -> None:
    """Refuse, before anything is trained, what any of these experiments would be refused for."""
    ready: list[tuple[tuple[Any, ...], Dataset, Inputs]] = []
    for name, experiment in experiments.items():
        if experiment.engine == "distributed":  # the ranks meet to prepare a run, and only once
            continue
        with named(name):
            _check(experiment, ready)


def _check(experiment: Experiment, ready: list[tuple[tuple[Any, ...], Dataset, Inputs]]) -> None:
    """Prepare a run up to its first round, with the examples of one in `ready` where it has the same."""
    kind = tuple(getattr(experiment, key) for key in SHARED)
    plainly = experiment.build_attack() is None  # attackers' examples have false labels
    dataset, sibling = next(((data, own) for other, data, own in ready if plainly and other == kind), (None, None))
    dataset = dataset or dataset_of(experiment, experiment.build_goal(), None)
    inputs = inputs_of(experiment, data=dataset, sibling=sibling)
    inputs.method.init(inputs.setting, inputs.model)  # where parts refuse a fleet that they cannot work with
    if sibling is None and plainly:
        ready.append((kind, dataset, inputs))


def trains(method: Method) -> str:
    """How a method's clients train: the optimiser with its rate, and the work."""
    optimiser, work = method.optimiser, method.work
    usual = {one.name: one.default for one in fields(optimiser)}
    others = {name: getattr(optimiser, name) for name in usual if name != "rate"}
    changed = [f"{name} {plain(value)}" for name, value in others.items() if value != usual[name]]
    parts = [f"{kind_of_optimiser(optimiser)} {optimiser.rate:g}", *changed]
    many, what = (work.epochs, "epoch") if work.steps is None else (work.steps, "step")
    much = f"{many} {what}{'' if many == 1 else 's'}"
    return f"{', '.join(parts)}; {much} of {work.batch or 'all'}"


def kind_of_optimiser(optimiser: Optimiser) -> str:
    """An optimiser's name as people write it."""
    name = type(optimiser).__name__
    return {"Sgd": "SGD"}.get(name, name)


def differences(experiments: Mapping[str, Experiment], pairs: Mapping[str, Any]) -> list[str]:
    """Notes on settings that not all methods take, or that do not mean the same to all."""
    notes = []
    for key, value in pairs.items():
        own = [name for name in experiments if takes(name, key)]
        if own and len(own) < len(experiments):
            rest = ", ".join(name for name in experiments if name not in own)
            notes.append(f"{key}={plain(value)} goes to {', '.join(own)}; {rest} has no such setting")
        if key.removeprefix("training.") in MEANT and not own:
            kinds: dict[str, list[str]] = {}
            for name, experiment in experiments.items():
                kinds.setdefault(kind_of_optimiser(experiment.build_method().optimiser), []).append(name)
            if len(kinds) > 1:
                whose = "; ".join(f"{kind} in {', '.join(names)}" for kind, names in kinds.items())
                notes.append(f"{key}={plain(value)} does not mean the same to all methods: {whose}")
    return notes
