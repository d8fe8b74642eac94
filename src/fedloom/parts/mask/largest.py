"""Mask: the largest numbers of the current model, up to each client's share."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Literal, get_args

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Mask
from fedloom.core.types import Portion, Setting, State
from fedloom.errors import BadExperiment, unknown
from fedloom.neurons.map import rounded
from fedloom.neurons.weights import Layer

Scope = Literal["hidden", "layer", "stage", "model"]


@dataclass(frozen=True)
class Largest(Mask):
    """The `share` of the numbers with the greatest magnitude, chosen anew every round, at least one of each group.

    `scope` says which numbers are ranked, and which of them together: the weights of every `hidden` layer; or weights
    and biases of all layers, those of a `layer`, of a `stage` (layers whose names begin alike) or of the whole `model`
    together. All other numbers, such as norms and statistics, are always sent. Of equal magnitudes in hidden layers the
    first in the tensor wins; in the other scopes all that equal the smallest one kept are kept.
    """

    scope: Scope = "hidden"

    def __post_init__(self) -> None:
        if self.scope not in get_args(Scope):
            raise BadExperiment(unknown("scope", self.scope, get_args(Scope)))

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Choose single numbers, not neurons."""
        if share.device.type == "cpu" and bool((share >= 1).all()):
            return Portion(), memory
        if self.scope != "hidden":
            return Portion(above(setting.layers, model.expand(len(ids), -1), share, self.scope)), memory
        mask = torch.ones(len(ids), len(model), dtype=torch.bool, device=model.device)
        for _, start, stop in setting.hidden_weights.spans:
            order = model[start:stop].abs().argsort(descending=True, stable=True)
            rank = torch.empty_like(order).scatter_(0, order, torch.arange(stop - start, device=model.device))
            mask[:, start:stop] = rank < rounded(share.double(), stop - start).clamp(min=1)[:, None]
        return Portion(mask), memory


def groups_of(layers: tuple[Layer, ...], scope: Scope) -> list[list[slice]]:
    """The places of all numbers of layers, in groups whose numbers are ranked together."""
    names = {"layer": lambda layer: layer.name, "stage": lambda layer: layer.name.partition(".")[0]}
    grouped = [list(some) for _, some in groupby(layers, names[scope])] if scope in names else [list(layers)]
    return [[span.place for layer in some for span in layer.spans] for some in grouped]


def above(layers: tuple[Layer, ...], params: Tensor, share: Tensor, scope: Scope) -> Tensor:
    """The numbers of layers [C, P] that are at least as large as the last of each client's share, and all others.

    Rows of `params` that share memory are sorted once.
    """
    mask = torch.ones(params.shape, dtype=torch.bool, device=params.device)
    size = (params[:1] if params.stride(0) == 0 else params).abs()
    for places in groups_of(layers, scope):
        values = torch.cat([size[:, place] for place in places], 1)
        count = rounded(share.double(), values.shape[1]).clamp(min=1)[:, None]
        least = values.sort(1, descending=True).values.expand(len(share), -1).gather(1, count - 1)
        for place in places:
            mask[:, place] = size[:, place] >= least
    return mask
