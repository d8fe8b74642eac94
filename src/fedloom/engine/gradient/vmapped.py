"""Gradients of a cohort at once, for any network that `torch.func` can transform."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from fedloom.core.types import Batch, Setting
from fedloom.engine.gradient.dropout import keys_of
from fedloom.engine.gradient.protocol import GradientKind


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
        module = self.setting.module.train()

        def loss(flat: Tensor, x: Tensor, y: Tensor, weight: Tensor, key: Tensor) -> Tensor:
            tensors = {**self.setting.layout.split(flat), **keys_of(module, key)}
            return (self.setting.loss(functional_call(module, tensors, (x,)), y) * weight).sum()

        grads, losses = vmap(grad_and_value(loss))(params.detach(), *batch)
        return grads, losses

    def outputs(self, params: Tensor, x: Tensor) -> Tensor:
        """The outputs of each client's network for its own examples."""
        module = self.setting.module.eval()

        def output(flat: Tensor, x: Tensor) -> Tensor:
            return functional_call(module, self.setting.layout.split(flat), (x,))  # type: ignore[no-any-return]

        with torch.no_grad():
            return vmap(output)(params, x)
