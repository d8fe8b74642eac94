"""Gradients of a cohort at once, for any network that `torch.func` can transform."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from fedloom.core.rule import Objective
from fedloom.core.types import Batch, Setting
from fedloom.engine.gradient.protocol import GradientKind
from fedloom.engine.gradient.run_network import ask_network, train_network
from fedloom.layout import Layout
from fedloom.neurons.resized import Sizes, sizes_of


class VmappedGradient:
    """`vmap(grad(loss))` over the clients. Networks with batch statistics need another way: padding would count."""

    kind: GradientKind = "vmapped"
    low = False
    stacked = None
    descent = None

    def __init__(self, setting: Setting) -> None:
        self.setting, self.layout = setting, setting.layout
        self._sizes: Sizes | None = None  # of a sub-model
        self._objective: Objective | None = None  # in place of the goal's loss

    def of_shapes(self, layout: Layout, counts: Sequence[int]) -> VmappedGradient:
        """A copy for sub-models: the same code, which is told other sizes."""
        other = copy(self)
        other.layout, other._sizes = layout, sizes_of(self.setting.neurons, counts)
        return other

    def aimed(self, objective: Objective) -> VmappedGradient:
        """A copy that differentiates this objective."""
        other = copy(self)
        other._objective = objective
        return other

    def __call__(self, params: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Gradients [C, P] and losses [C]."""
        setting, split, sizes = self.setting, self.layout.split, self._sizes

        aim = self._objective

        def loss(flat: Tensor, x: Tensor, y: Tensor, weight: Tensor, key: Tensor, *facts: Tensor) -> Tensor:
            def weighed(answer: Tensor) -> Tensor:
                if aim is not None:
                    return aim.loss(answer, y, weight, *facts)
                return (setting.loss(answer, y) * weight).sum()

            return train_network(setting, split(flat), x, key, weighed, sizes)

        with _without_advice():
            facts = () if aim is None else aim.facts
            grads, losses = vmap(grad_and_value(loss))(params.detach(), *batch, *facts)
        return grads, losses

    def outputs(self, params: Tensor, x: Tensor) -> Tensor:
        """The outputs of each client's network for its own examples."""
        setting, split, sizes = self.setting, self.layout.split, self._sizes
        with torch.no_grad(), _without_advice():
            return vmap(lambda flat, own: ask_network(setting, split(flat), own, sizes))(params, x)


@contextmanager
def _without_advice() -> Iterator[None]:
    """Silence torch's warning of calls that vmap makes client by client: whether that is quick enough is measured."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        yield
