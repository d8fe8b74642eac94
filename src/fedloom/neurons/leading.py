"""Fleets in which clients own sub-networks of several sizes: the leading neurons of every layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.errors import BadExperiment
from fedloom.neurons.map import NeuronMap


@dataclass(frozen=True)
class LeadingNeurons:
    """Each client owns the leading neurons of every hidden layer; client n is of tier n modulo the number of tiers.

    A tier is the widths of all hidden layers in order, or one share of each, rounded up.
    """

    tiers: tuple[tuple[int, ...] | float, ...]

    def __post_init__(self) -> None:
        if not self.tiers:
            raise BadExperiment("tiers (of networks) is empty; name at least one tier's widths or share.")
        for tier, own in enumerate(self.tiers):
            if not isinstance(own, tuple) and not 0 < own <= 1:
                raise BadExperiment(f"share of tier {tier} is {own}; a share lies above 0 and at most at 1.")

    def keeps(self, neurons: NeuronMap, device: torch.device) -> Tensor:
        """Neurons that each tier owns [tiers, K]."""
        kept = [self._checked(neurons, tier, own) for tier, own in enumerate(self.tiers)]
        return torch.stack(kept).to(device)

    def of(self, neurons: NeuronMap, ids: Tensor) -> Tensor:
        """Neurons that these clients own [C, K]."""
        return self.keeps(neurons, ids.device)[ids % len(self.tiers)]

    def coverage(self, neurons: NeuronMap, clients: int, device: torch.device) -> Tensor:
        """Fraction of all clients that own each neuron [K]."""
        return self.of(neurons, torch.arange(clients, device=device)).double().mean(0)

    def _checked(self, neurons: NeuronMap, tier: int, own: tuple[int, ...] | float) -> Tensor:
        """One tier's neurons [K]; refuses widths that do not fit this network."""
        whole = tuple(neurons.widths[group] for group in neurons.groups)
        places = torch.cat([torch.arange(width) for width in whole]) if whole else torch.arange(0)
        if not isinstance(own, tuple):
            return neurons.cut(-places.double(), own, rounding="ceil")
        if len(own) != len(whole) or any(not 1 <= few <= all_ for few, all_ in zip(own, whole)):
            raise BadExperiment(
                f"tier {tier} of the networks is {own} neurons wide; the model's hidden layers are {whole}, and a tier "
                "has as many layers, each with 1 neuron or more and not more than the model's. Choose another model."
            )
        return places < torch.tensor(own).repeat_interleave(torch.tensor(whole))
