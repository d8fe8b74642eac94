"""The part of every weight that is trained where the whole network runs, but only some neurons are trained.

Activations are computed in full. Of a weight's gradient, only the rows and columns of trained neurons are computed, so
that freezing saves work.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.engine.gradient.products import Part
from fedloom.neurons.map import NeuronMap


class Cut(NamedTuple):
    """The rows and columns of a weight [outputs, inputs, ...] that each client trains; None: all."""

    rows: Tensor | None  # [C, r]
    columns: Tensor | None  # [C, c]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Frozen:
    """The trained part of a cohort's models: a cut of some layers' weights, and a mask over all other numbers."""

    cuts: dict[str, Cut]  # by layer
    mask: Tensor  # [C, P]

    @cached_property
    def parts(self) -> dict[str, Part]:
        """The cuts with the places of their numbers, which not every way needs."""
        return {layer: part(cut, self.mask) for layer, cut in self.cuts.items()}


def freeze(neurons: NeuronMap, layers: Iterable[str], keep: Tensor, mask: Tensor) -> Frozen | None:
    """The part that is trained where only the kept neurons [C, K] are; None: everything.

    Clients must keep equally many neurons of every group, each its own. `layers` have weights [outputs, inputs, ...].
    """
    kept = neurons.padded(keep)
    along = [kept[:, entries] for entries in neurons.lists]  # [C, n] each
    if not along:
        return None
    counts = torch.stack([bools[0].sum() for bools in along]).tolist()  # waits for the device once
    chosen = [
        None if count == bools.shape[1] else bools.byte().argsort(dim=1, descending=True, stable=True)[:, :count]
        for bools, count in zip(along, counts)
    ]
    if all(index is None for index in chosen):
        return None
    weights = {tensor.name: tensor for tensor in neurons.tensors}
    cuts = {}
    for layer in layers:
        weight = weights[f"{layer}.weight"]
        rows, columns = (None if which is None else chosen[which] for which in weight.along[:2])
        given = [index for index in (rows, columns) if index is not None]
        if given and all(index.shape[1] for index in given):
            cuts[layer] = Cut(rows, columns, weight.shape)
    return Frozen(cuts, mask)


def part(cut: Cut, mask: Tensor) -> Part:
    """A cut with the places of its numbers."""
    rows, columns, (outputs, inputs, *kernel) = cut
    clients, device = len(mask), mask.device
    row = torch.arange(outputs, device=device).expand(clients, -1) if rows is None else rows
    row = row + outputs * torch.arange(clients, device=device)[:, None]
    if columns is None:
        return Part(rows, columns, row, row)
    size = torch.Size(kernel).numel()
    pair = row[:, :, None] * inputs + columns[:, None, :]  # [C, r, c]
    return Part(rows, columns, (pair[..., None] * size + torch.arange(size, device=device)).flatten(1), row)
