"""Gradients of a cohort at once, for any network that `torch.func` can transform."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from fedloom.core.types import Batch, Setting
from fedloom.engine.gradient.protocol import GradientKind
from fedloom.engine.gradient.run_network import ask_network, train_network


class VmappedGradient:
    """`vmap(grad(loss))` over the clients. Networks with batch statistics need another way: padding would count."""

    kind: GradientKind = "vmapped"
    low = False
    stacked = None
    descent = None

    def __init__(self, setting: Setting) -> None:
        self.setting, self.layout = setting, setting.layout

    def __call__(self, params: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Gradients [C, P] and losses [C]."""
        setting, split = self.setting, self.setting.layout.split

        def loss(flat: Tensor, x: Tensor, y: Tensor, weight: Tensor, key: Tensor) -> Tensor:
            return train_network(setting, split(flat), x, key, lambda answer: (setting.loss(answer, y) * weight).sum())

        grads, losses = vmap(grad_and_value(loss))(params.detach(), *batch)
        return grads, losses

    def outputs(self, params: Tensor, x: Tensor) -> Tensor:
        """The outputs of each client's network for its own examples."""
        setting, split = self.setting, self.setting.layout.split
        with torch.no_grad():
            return vmap(lambda flat, own: ask_network(setting, split(flat), own))(params, x)
