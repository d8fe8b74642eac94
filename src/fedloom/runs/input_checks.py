"""Checks of what a run is made from."""

from __future__ import annotations

from torch import nn

from fedloom.core.goal import Goal
from fedloom.core.types import Setting
from fedloom.data.dataset import Dataset
from fedloom.errors import BadExperiment, short
from fedloom.goals.classes import ClassWeights
from fedloom.method import Method


def check_kind(name: str, value: object, kind: type) -> None:
    """Refuse a thing of the user's own that is something else."""
    if value is not None and not isinstance(value, kind):
        expected = "an nn.Module" if kind is nn.Module else f"a {kind.__name__}"
        raise BadExperiment(f"{name} is {short(value)} ({type(value).__name__}); expected {expected}.")


def check_classes(method: Method, setting: Setting) -> None:
    """Refuse a method that uses which classes a client has, where the network's outputs do not stand for classes."""
    if method.local.traits.masks_classes and not setting.fleet.by_class:
        raise BadExperiment(
            f"the method leaves out the outputs of classes that a client lacks, and goal '{setting.goal.name}' has no "
            "output for each class that data are dealt by; set method.mask_labels=false."
        )


def check_weights(goal: Goal, dataset: Dataset) -> None:
    """Refuse class weights that leave out a class of the data."""
    if isinstance(goal.weigh, ClassWeights) and len(goal.weigh.weights) < dataset.classes:
        raise BadExperiment(
            f"weights of goal '{goal.name}' has {len(goal.weigh.weights)} numbers; expected one for each of the "
            f"{dataset.classes} classes of the data."
        )
