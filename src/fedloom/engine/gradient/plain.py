"""Gradients of one client after another in plain PyTorch: the oracle that all other ways are tested against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy

import torch
from torch import Tensor

from fedloom.core.rule import Objective
from fedloom.core.types import Batch, Setting
from fedloom.engine.gradient.protocol import GradientKind
from fedloom.engine.gradient.run_network import ask_network, train_network
from fedloom.layout import Layout
from fedloom.neurons.resized import Sizes, sizes_of


class PlainGradient:
    """Autograd of each client's loss in turn, on batches without padding and examples of weight 0."""

    kind: GradientKind = "one by one"
    low = False
    stacked = None

    def __init__(self, setting: Setting) -> None:
        self.setting, self.layout = setting, setting.layout
        self._sizes: Sizes | None = None  # of a sub-model
        self._objective: Objective | None = None  # in place of the goal's loss

    def of_shapes(self, layout: Layout, counts: Sequence[int]) -> PlainGradient:
        """A copy for sub-models: the same code, which is told other sizes."""
        other = copy(self)
        other.layout, other._sizes = layout, sizes_of(self.setting.neurons, counts)
        return other

    def aimed(self, objective: Objective) -> PlainGradient:
        """A copy that differentiates this objective."""
        other = copy(self)
        other._objective = objective
        return other

    def __call__(self, params: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Gradients [C, P] and losses [C]."""
        grads, losses = torch.zeros_like(params), params.new_empty(len(params))
        for row, flat in enumerate(params):
            tensors = {name: t.detach() for name, t in self.layout.split(flat).items()}
            found, losses[row] = self._differentiate(tensors, batch, row)
            torch.cat([g.reshape(-1) for g in found], out=grads[row, : self.layout.trained])
        return grads, losses

    def descent(self, first: Tensor, batches: Iterable[Batch], rate: float, shrink: float) -> tuple[Tensor, Tensor]:
        """All steps of plain SGD, which change each client's own tensors in place."""
        layout = self.layout
        owned = [{name: t.detach().clone() for name, t in layout.split(flat).items()} for flat in first]
        total = first.new_zeros(len(first))
        for batch in batches:
            for row in range(len(batch.y)):
                found, loss = self._differentiate(owned[row], batch, row)
                total[row] += loss
                for name, grad in zip(layout.parameters, found):
                    value = owned[row][name].detach()
                    (value if shrink == 1 else value.mul_(shrink)).sub_(grad, alpha=rate)
        ends = [layout.join(tensors, 0).detach() for tensors in owned]
        return ends[0][None] if len(ends) == 1 else torch.stack(ends), total

    def _differentiate(self, tensors: dict[str, Tensor], batch: Batch, row: int) -> tuple[tuple[Tensor, ...], Tensor]:
        """One client's gradients, by parameter, and its loss."""
        setting, goal = self.setting, self.setting.goal
        leaves = [tensors[name].requires_grad_() for name in self.layout.parameters]
        counts = batch.weight[row] > 0
        if not bool(counts.any()):  # nothing in the batch counts
            return tuple(torch.zeros_like(leaf) for leaf in leaves), batch.weight.new_zeros(())
        real = slice(int(counts.sum())) if goal.weigh is None else counts

        def differentiated(output: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
            if (aim := self._objective) is not None:
                facts = (fact[row] for fact in aim.facts)
                loss = aim.loss(output, batch.y[row, real], batch.weight[row, real].to(output), *facts)
                return torch.autograd.grad(loss, leaves, materialize_grads=True), loss.detach()
            losses = setting.loss(output, batch.y[row, real])
            loss = losses.mean() if goal.weigh is None else (losses * batch.weight[row, real].to(losses)).sum()
            return torch.autograd.grad(loss, leaves, materialize_grads=True), loss.detach()

        return train_network(setting, tensors, batch.x[row, real], batch.keys[row], differentiated, self._sizes)

    def outputs(self, params: Tensor, x: Tensor) -> Tensor:
        """The outputs of each client's network for its own examples."""
        setting, split, sizes = self.setting, self.layout.split, self._sizes
        with torch.no_grad():
            return torch.stack([ask_network(setting, split(flat), own, sizes) for flat, own in zip(params, x)])
