"""Mask: the largest weights of the current model, up to each client's share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Mask
from fedloom.core.types import Portion, Setting, State
from fedloom.neurons.map import rounded


@dataclass(frozen=True)
class Largest(Mask):
    """The `share` of every hidden layer's weights with the greatest magnitude, chosen anew every round, at least one.

    Biases, norms, statistics and the output layer are always sent. Of equal magnitudes the first in the tensor wins.
    """

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Choose single weights, not neurons."""
        if share.device.type == "cpu" and bool((share >= 1).all()):
            return Portion(), memory
        mask = torch.ones(len(ids), len(model), dtype=torch.bool, device=model.device)
        for _, start, stop in setting.hidden_weights.spans:
            order = model[start:stop].abs().argsort(descending=True, stable=True)
            rank = torch.empty_like(order).scatter_(0, order, torch.arange(stop - start, device=model.device))
            mask[:, start:stop] = rank < rounded(share.double(), stop - start).clamp(min=1)[:, None]
        return Portion(mask), memory
