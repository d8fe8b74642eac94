"""Mask: some layers of the network, the same ones for every client."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.layers import layers_of
from fedloom.core.part import Mask
from fedloom.core.types import Portion, Setting, State


@dataclass(frozen=True)
class ShareLayers(Mask):
    """The layers that `shared` names, whatever the share; the others stay with the clients."""

    shared: str = "body"

    @property
    def sends_all(self) -> bool:
        """With all layers."""
        return self.shared == "all"

    def init(self, setting: Setting, model: Tensor) -> State:
        """Refuse names of layers that the network does not have."""
        layers_of(setting).numbers(self.shared)
        return {}

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Return one mask, which all clients share in memory."""
        if self.sends_all:
            return Portion(), memory
        return Portion(layers_of(setting).numbers(self.shared).expand(len(ids), -1)), memory
