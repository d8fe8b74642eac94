"""A run's network with its adapter, on the weights that the run begins with."""

from __future__ import annotations

from torch import nn

from fedloom.layout import copied, layout_of
from fedloom.runs.experiment import Experiment
from fedloom.runs.start import begin_with, names_in


def with_adapter(experiment: Experiment, network: nn.Module) -> nn.Module:
    """The network to train: with the experiment's adapter, whose base has the weights of `start`, if it names any.

    A file with the adapter's own weights is read later: it holds nothing of the base.
    """
    adapted = experiment.with_adapter(network)
    if experiment.adapter.name == "none" or experiment.start is None or _holds(experiment, adapted):
        return adapted
    network = copied(network)  # the user's own stays as it is
    begin_with(experiment.start, layout_of(network), network)
    return experiment.with_adapter(network)


def later_start(experiment: Experiment, network: nn.Module) -> str | None:
    """The file that a network begins with; None where its base began with it, or where the experiment names none."""
    if experiment.adapter.name == "none" or experiment.start is None or _holds(experiment, network):
        return experiment.start
    return None


def _holds(experiment: Experiment, adapted: nn.Module) -> bool:
    """Whether the experiment's file holds the trained weights of an adapted network."""
    return experiment.start is not None and {*layout_of(adapted).parameters} <= names_in(experiment.start)
