"""A module of kept neurons whose code writes sizes down."""

from __future__ import annotations

from typing import Any

from torch import nn

from fedloom.neurons.resized import Sizes, resized


class Cut(nn.Module):
    """A network of fewer neurons, `network`, whose calls are told how many there are.

    It trains, saves and exports like any module.
    """

    def __init__(self, network: nn.Module, sizes: Sizes) -> None:
        """`network` holds the small tensors, and its layers' attributes count them."""
        super().__init__()
        self.network, self.sizes = network, sizes._replace(attributes=())
        self.training = network.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the network gives."""
        with resized(self.network, self.sizes):
            return self.network(*args, **kwargs)
