"""The data of a run: loaded or given, made ready for the goal, and dealt to clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedloom.core.goal import Goal
from fedloom.data.dataset import Dataset
from fedloom.data.lists import Lists
from fedloom.data.load import load
from fedloom.data.partition import BY_CLASS, Partition, partition
from fedloom.data.prepare import renewed
from fedloom.data.sampling import Ints
from fedloom.data.targets import for_goal, strata_of
from fedloom.errors import BadExperiment
from fedloom.runs.experiment import AUTO, Experiment


def dataset_of(experiment: Experiment, goal: Goal, data: Dataset | None = None, folder: Path | None = None) -> Dataset:
    """The experiment's data, by name from `folder`, or those of the user's own, with targets of the goal's kind."""
    if data is None:
        return load(experiment.data.name, folder=folder, goal=goal, **experiment.data.settings)
    where = f"data '{data.name}'"
    return for_goal(renewed(data, where), goal, where)


def deal(experiment: Experiment, data: Dataset, goal: Goal) -> Partition:
    """The training examples of each client, by the experiment's partition.

    'auto' keeps clients that the data come divided among, else deals by class where there are classes, else at random.
    """
    strata, clients = strata_of(data, goal), experiment.clients
    name, settings = experiment.partition.name, experiment.partition.settings
    if name == AUTO:
        name = "own" if data.divided else "iid" if strata is None else "dirichlet"
        if name == "own" and data.client_train is not None:
            clients = min(clients, len(np.unique(data.client_train)))
    if strata is None and _needs_classes(name, settings):
        raise BadExperiment(
            f"partition '{name}' deals examples by their class, and goal '{goal.name}' has none; take iid or "
            "lognormal, own if the data have clients, or give the data an array or column 'stratum' to deal by."
        )
    labels = np.zeros(len(data.x_train), np.int64) if strata is None else strata
    return partition(name, labels, clients, experiment.seed, client_ids=data.client_train, **settings)


def _needs_classes(name: str, settings: dict[str, Any]) -> bool:
    """Whether a partition looks at the classes of examples."""
    return name in BY_CLASS or (name == "lognormal" and settings.get("alpha") is not None)


def client_names(data: Dataset, dealt: Partition) -> tuple[str, ...] | None:
    """The name of each of the partition's clients, if the data name clients and examples were dealt so."""
    if data.client_names is None or data.client_train is None:
        return None
    lists = Lists.of(dealt.clients)
    ids, sizes = data.client_train[lists.examples], lists.sizes
    first = np.cumsum(sizes) - sizes
    whose: Ints = ids[np.minimum(first, len(ids) - 1)]
    if (ids != np.repeat(whose, sizes)).any():
        return None
    return tuple(data.client_names[one] if size else "" for one, size in zip(whose.tolist(), sizes.tolist()))
