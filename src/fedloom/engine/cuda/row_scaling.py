"""Weights that run multiplied by a fixed scale per row, trained as the products `u = scale * w`.

A step of `w` by `rate * scale * g` is a step of `u` by `rate * scale ** 2 * g`, so only a rate factor per row enters
the steps. Momentum and decay stay as they are. Each row of a tensor has one scale, so no scales of the models' size are
made: weights are multiplied when they are copied anyway.
"""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from fedloom.core.types import State
from fedloom.layout import Layout


class RowScaling:
    """A cohort's scales, and the rate factor of each row."""

    def __init__(self, layout: Layout, like: Tensor) -> None:
        """`like`: models [C, P]."""
        self.layout, clients = layout, len(like)
        self.rows = [shape[0] if shape else 1 for shape in layout.shapes]
        starts = accumulate(layout.sizes, initial=0)
        first = [
            start + row * (size // rows)
            for start, size, rows in zip(starts, layout.sizes, self.rows)
            for row in range(rows)
        ]
        self.at = torch.tensor(first, device=like.device)  # [R] start of each tensor's rows in a model
        self.squared = like.new_zeros(clients * len(first))
        parts = self.squared.split([clients * rows for rows in self.rows])
        self.rate_factors = {name: part.view(clients, -1) for name, part in zip(layout.names, parts)}  # [C, rows] each

    def begin(self, scale: Tensor | None, first: Tensor) -> None:
        """Take the rows' scales [C, R] and the first weights [C, P]."""
        assert scale is not None
        self.scale, self.first = scale.contiguous(), first

    def products(self) -> State:
        """The first products, one tensor [C, ...] each; sets the rate factors."""
        places = [pace[: len(self.scale)] for pace in self.rate_factors.values()]
        torch._foreach_copy_(places, self.scale.square().split(self.rows, 1))
        return {name: weights * by for name, weights, by in self._each(self.layout.split(self.first))}

    def scale_gradient(self, name: str, grad: Tensor) -> Tensor:
        """Multiply a gradient [C, ...] of products by the rate factors of its rows."""
        return grad * _along(self.rate_factors[name][: len(grad)], grad)

    def end(self, last: State) -> State:
        """Weights from the last products; where a scale is zero, the first weights."""
        first = self.layout.split(self.first)
        return {name: torch.where(by == 0, first[name], product / by) for name, product, by in self._each(last)}

    def _each(self, tensors: State) -> list[tuple[str, Tensor, Tensor]]:
        """Each tensor with the scales of its rows."""
        parts = zip(self.layout.names, self.scale.split(self.rows, 1))
        return [(name, tensors[name], _along(part, tensors[name])) for name, part in parts]


def _along(rows: Tensor, like: Tensor) -> Tensor:
    """View one value per row [C, rows] to broadcast over `like` [C, rows, ...]."""
    return rows.reshape(*like.shape[:2], *(1,) * (like.dim() - 2))
