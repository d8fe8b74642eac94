"""The whole network runs but only some neurons are trained: which part of every weight moves?

Activations are computed in full. Of a weight's gradient only the rows and columns of the trained neurons are, so that
freezing saves real work; where `lanes.py` can, gradients of activations also end at the first layer's trained neurons.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.engine.products import Part
from fedloom.neurons.map import NeuronMap


class Frozen(NamedTuple):
    """What moves of a cohort's models: of some layers a part of the weight, of all other tensors what the mask says."""

    parts: dict[str, Part]  # by layer
    mask: Tensor  # [C, P]


def freeze(neurons: NeuronMap, layers: Iterable[str], keep: Tensor, mask: Tensor) -> Frozen | None:
    """What moves where only the kept neurons [C, K] are trained; None: everything.

    Clients must keep equally many neurons of every group, each its own. `layers` have weights [outputs, inputs, ...].
    """
    kept = neurons.padded(keep)
    along = [kept[:, entries] for entries in neurons.lists]  # [C, n] each
    counts = torch.stack([bools[0].sum() for bools in along]).tolist()  # one wait for all
    chosen = [
        None if count == bools.shape[1] else bools.byte().argsort(dim=1, descending=True, stable=True)[:, :count]
        for bools, count in zip(along, counts)
    ]
    if all(index is None for index in chosen):
        return None
    weights = {tensor.name: tensor for tensor in neurons.tensors}
    parts = {}
    for layer in layers:
        weight = weights[f"{layer}.weight"]
        rows, columns = (None if which is None else chosen[which] for which in weight.along[:2])
        cut = [index for index in (rows, columns) if index is not None]
        if cut and all(index.shape[1] for index in cut):
            parts[layer] = part(rows, columns, weight.shape, keep)
    return Frozen(parts, mask)


def part(rows: Tensor | None, columns: Tensor | None, shape: tuple[int, ...], keep: Tensor) -> Part:
    """The rows [C, r] and columns [C, c] of weights of this shape, and where they lie."""
    outputs, inputs, *kernel = shape
    clients, device = len(keep), keep.device
    row = torch.arange(outputs, device=device).expand(clients, -1) if rows is None else rows
    row = row + outputs * torch.arange(clients, device=device)[:, None]
    if columns is None:
        return Part(rows, columns, row, row)
    size = torch.Size(kernel).numel()
    pair = row[:, :, None] * inputs + columns[:, None, :]  # [C, r, c]
    return Part(rows, columns, (pair[..., None] * size + torch.arange(size, device=device)).flatten(1), row)
