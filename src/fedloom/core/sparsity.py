"""Sparse models of a fixed density: how many weights each layer keeps, when they are exchanged, and which.

Only weights of layers are pruned; biases, norms and statistics stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import cos, pi, prod
from typing import Literal, get_args

import torch
from torch import Tensor

from fedloom.core.types import Setting
from fedloom.errors import BadExperiment, unknown
from fedloom.neurons.weights import Layer, Span

Spread = Literal["uniform", "er", "erk"]


@dataclass(frozen=True)
class Sparsity:
    """A `density` of all numbers, spread over layers, of which a falling part is exchanged every few rounds."""

    density: float = 0.1
    spread: Spread = "erk"
    alpha: float = 0.2  # the part exchanged at first
    every: int = 10  # rounds between exchanges
    until: int = 300  # the last round with an exchange
    blocks: int = 1  # an exchange is of every `blocks`-th tensor of weights, by turns

    def __post_init__(self) -> None:
        """Check the settings."""
        if not 0 < self.density <= 1:
            raise BadExperiment(f"density is {self.density}; it lies above 0 and at most at 1.")
        if not 0 <= self.alpha <= 1:
            raise BadExperiment(f"alpha (part of the weights that is exchanged) is {self.alpha}; it lies from 0 to 1.")
        if min(self.every, self.until, self.blocks) < 1:
            said = f"every, until and blocks are {self.every}, {self.until} and {self.blocks}"
            raise BadExperiment(f"{said}; each is at least 1.")
        if self.spread not in get_args(Spread):
            raise BadExperiment(unknown("spread of the density", self.spread, get_args(Spread)))

    def adjusts(self, number: int) -> bool:
        """Whether weights are exchanged in this round, counted from 1."""
        return self.alpha > 0 and number > 1 and (number - 1) % self.every == 0 and number - 1 <= self.until

    def part(self, number: int) -> float:
        """The part of a layer's weights that is exchanged in a round, counted from 1."""
        t = number - 1
        return 0.5 * self.alpha * (1 + cos(pi * t / self.until)) if t <= self.until else 0.0

    def turn(self, number: int, places: list[Tensor]) -> list[Tensor]:
        """Those of the tensors of weights that are exchanged in a round, counted from 1."""
        return places[(number - 1) // self.every % self.blocks :: self.blocks]

    def densities(self, setting: Setting) -> list[float]:
        """The density of each prunable tensor."""
        spans = prunable(setting)
        shapes = dict(zip(setting.layout.names, setting.layout.shapes))
        return spread_out([shapes[span.name] for span in spans], setting.layout.trained, self.density, self.spread)

    def counts(self, setting: Setting) -> list[int]:
        """How many weights of each prunable tensor are kept."""
        return [int(part * (s.stop - s.start)) for s, part in zip(prunable(setting), self.densities(setting))]

    def largest(self, setting: Setting, model: Tensor) -> Tensor:
        """The mask [P] of the largest weights of each tensor, and all numbers that are never pruned."""
        mask = torch.ones_like(model, dtype=torch.bool)
        for span, count in zip(prunable(setting), self.counts(setting)):
            order = model[span.place].abs().argsort(descending=True, stable=True)
            mask[span.place] = torch.zeros_like(mask[span.place]).index_fill(0, order[:count], True)
        return mask


def prunable(setting: Setting) -> list[Span]:
    """The tensors whose entries may be pruned."""
    return [span for layer in setting.layers for span in layer.weights]


def places_of(setting: Setting, device: torch.device) -> list[Tensor]:
    """The places of the weights of each prunable tensor."""
    return [torch.arange(span.start, span.stop, device=device) for span in prunable(setting)]


@lru_cache(maxsize=8)
def numbered(layers: tuple[Layer, ...], total: int, device: torch.device) -> Tensor:
    """The prunable tensor of each number [P], from 1; 0 for all others. Such whole numbers do not travel."""
    found = torch.zeros(total, dtype=torch.int32)
    for number, span in enumerate((span for layer in layers for span in layer.weights), 1):
        found[span.place] = number
    return found.to(device)


def places_in(tensors: Tensor) -> list[Tensor]:
    """The places of the weights of each tensor, from the tensor of each number [P]."""
    return [(tensors == number).nonzero().flatten() for number in range(1, int(tensors.max()) + 1)]


def spread_out(shapes: list[tuple[int, ...]], total: int, density: float, spread: Spread) -> list[float]:
    """The density of tensors of these shapes, so that of all `total` numbers this density is kept."""
    sizes = [prod(shape) for shape in shapes]
    dense = total - sum(sizes)
    target = max(0.0, (int(density * total) - dense) / sum(sizes))
    if spread == "uniform" or target >= 1:
        return [min(1.0, target)] * len(sizes)
    raw = [_share(shape, spread) for shape in shapes]
    whole: set[int] = set()
    while True:
        kept = sum(int(n * target) for i, n in enumerate(sizes) if i not in whole)
        kept -= sum(int(n * (1 - target)) for i, n in enumerate(sizes) if i in whole)
        divided = sum(raw[i] * n for i, n in enumerate(sizes) if i not in whole)
        scale = kept / divided if divided else 0.0
        rest = [i for i in range(len(sizes)) if i not in whole]
        most = max(raw[i] for i in rest)
        if most * scale <= 1:
            return [1.0 if i in whole else scale * raw[i] for i in range(len(sizes))]
        whole |= {i for i in rest if raw[i] == most}


def _share(shape: tuple[int, ...], spread: Spread) -> float:
    """How dense a tensor is relative to others."""
    of = shape if spread == "erk" else shape[:2]
    return sum(of) / prod(of)


def exchanged(model: Tensor, mask: Tensor, scores: Tensor, places: list[Tensor], part: float) -> Tensor:
    """The masks [C, P] after a `part` of the active weights at `places`, the smallest, gives way to the highest scores.

    Each of `places` is a tensor of weights. A weight that was just dropped may return; of equal scores those of larger
    weights win.
    """
    new = mask.clone()
    for place in places:
        active, size, score = mask[:, place], model[:, place].abs(), scores[:, place].abs()
        count = _part_of(active, part)
        active = active & (_rank(torch.where(active, size, torch.inf)) >= count)
        order = size.argsort(dim=1, descending=True, stable=True)
        ranked = _rank(torch.where(active, 1, -score).gather(1, order))  # the highest scores of inactive weights first
        new[:, place] = active | (torch.empty_like(ranked).scatter_(1, order, ranked) < count)
    return new


def smallest(model: Tensor, mask: Tensor, places: list[Tensor], part: float) -> Tensor:
    """The active weights [C, P] that an exchange of a `part` of them would drop: the smallest."""
    low = torch.zeros_like(mask)
    for place in places:
        active = mask[:, place]
        size = torch.where(active, model[:, place].abs(), torch.inf)
        low[:, place] = active & (_rank(size) < _part_of(active, part))
    return low


def offered(mask: Tensor, scores: Tensor, place: Tensor, part: float, most: int) -> tuple[Tensor, Tensor]:
    """Places [C, most] of the highest scores among the inactive weights at `place`, or -1, and these scores.

    As many as the `part` of the active weights that is exchanged.
    """
    active, score = mask[:, place], scores[:, place]
    size, at = torch.where(active, -1, score.abs()).topk(most, 1)
    here = (torch.arange(most, device=mask.device) < _part_of(active, part)) & (size >= 0)
    return torch.where(here, place[at], -1), torch.where(here, score.gather(1, at), 0)


def _part_of(active: Tensor, part: float) -> Tensor:
    """The number of weights that are exchanged [C, 1]."""
    return (part * active.sum(1, keepdim=True).double()).long()


def _rank(values: Tensor) -> Tensor:
    """The place of each entry in the rising order of its row [C, n]; of equal entries the first comes first."""
    order = values.argsort(dim=1, stable=True)
    ranks = torch.arange(values.shape[1], device=values.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, ranks)
