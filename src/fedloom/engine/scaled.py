"""Weights that run multiplied by fixed numbers: plain descent of the product `u = scale * w`.

A step of `w` by `rate * scale * g` is one of `u` by `rate * scale ** 2 * g`, so that nothing but the pace of every
neuron's weights enters the steps. Momentum and decay carry over as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedloom.layout import Layout
from fedloom.neurons.map import NeuronMap

if TYPE_CHECKING:
    from fedloom.engine.narrow import Narrow


class Scaled:
    """A cohort's products, and how fast each neuron's weights go."""

    def __init__(self, layout: Layout, neurons: NeuronMap, like: Tensor) -> None:
        """`like`: models [C, P]."""
        self.layout, self.neurons = layout, neurons
        shapes = dict(zip(layout.names, layout.shapes))
        self.paces = {name: like.new_zeros(len(like), shapes[name][0]) for name in layout.parameters}  # [C, rows]

    def begin(self, scale: Tensor, first: Tensor) -> Tensor:
        """Where the products begin [C, P]."""
        self.scale, self.first = scale, first
        return first * scale

    def set_paces(self, narrow: Narrow | None) -> None:
        """Of all rows, in the order in which their neurons stand."""
        split, spans = self.layout.split(self.scale), dict(self.neurons.spans(self.neurons.size))
        for name, pace in self.paces.items():
            rows, axis = split[name].flatten(2) if split[name].dim() > 2 else split[name], self.neurons.axes[name][0]
            rows = rows[:, :, 0] if rows.dim() > 2 else rows  # one number tells all of a row
            if narrow is not None and axis and (span := spans.get(axis[0].group)) is not None:
                rows = rows.gather(1, narrow.live[: len(rows), span].clamp(min=0).long())
            torch.square(rows, out=pace[: len(rows)])

    def slowed(self, name: str, grad: Tensor) -> Tensor:
        """A tensor's gradient [C, ...] of the products."""
        pace = self.paces[name][: len(grad)]
        return grad * pace.view(*pace.shape, *(1,) * (grad.dim() - 2))

    def end(self, last: Tensor) -> Tensor:
        """The weights themselves; those that did not count are where they were."""
        return torch.where(self.scale == 0, self.first, last / self.scale)
