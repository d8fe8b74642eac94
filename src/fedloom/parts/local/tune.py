"""Local: a client's model is the one that it has after some epochs on its own examples, from the global model."""

from __future__ import annotations

from dataclasses import dataclass

from fedloom.core.rule import LocalRule, Traits, Tuning
from fedloom.errors import BadExperiment
from fedloom.neurons.layers import complement
from fedloom.parts.local.freeze_layers import FreezeLayers


@dataclass(frozen=True)
class Tune(LocalRule):
    """Before it is tried, a model is trained for `epochs`, in the layers that `layers` names; nothing of it is kept."""

    epochs: int = 5
    layers: str = "all"

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise BadExperiment(f"epochs (of fine-tuning) is {self.epochs}; it is at least 1.")

    @property
    def traits(self) -> Traits:
        """Models are tried on examples kept back."""
        return Traits(personal=True)

    @property
    def tunes(self) -> Tuning:
        """These epochs."""
        return Tuning(LocalRule() if self.layers == "all" else FreezeLayers(complement(self.layers)), self.epochs)
