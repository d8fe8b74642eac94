"""Compact weights: each client's kept neurons come first in every weight, and kernels leave out the rest.

A client's part of a weight is then one block, whatever its size.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedloom.engine.cuda.convolution_kernels import tile_of
from fedloom.engine.cuda.row_scaling import RowScaling
from fedloom.layout import Layout
from fedloom.neurons.axes import Segment
from fedloom.neurons.map import NeuronMap

BLOCK = 1024  # numbers that a program moves


@triton.jit  # type: ignore[untyped-decorator]
def _rank(keep, spans, live, rank, kept, CLIENTS, NEURONS, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """List a layer's kept neurons (live), the place of each among them (rank) and their count (kept); -1: not kept."""
    client, layer = tl.program_id(0), tl.program_id(1)
    first, size = tl.load(spans + 2 * layer), tl.load(spans + 2 * layer + 1)
    n = tl.arange(0, WIDTH)
    at = client * NEURONS + first + n
    inside = n < size
    here = tl.load(keep + at, mask=inside, other=0).to(tl.int32)
    place = tl.cumsum(here, 0) - 1
    count = tl.sum(here, 0)
    tl.store(rank + at, tl.where(here > 0, place, -1), mask=inside)
    tl.store(live + at, n * 0 - 1, mask=inside & (n >= count))
    tl.store(live + client * NEURONS + first + place, n, mask=here > 0)
    tl.store(kept + layer * CLIENTS + client, count)


@triton.jit  # type: ignore[untyped-decorator]
def _arrange(  # type: ignore[no-untyped-def]
    source, target, listed, facts, tensors, firsts, scale, rate_factors, models, FLAT, CLIENTS, NEURONS, ROWS, MODEL,
    BACK: tl.constexpr, CLEAR: tl.constexpr, SCALED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy models [C, P] to compact tensors, kept neurons first, or BACK, with zeros for neurons that are not kept.

    CLEAR: write zeros beyond the kept neurons of compact tensors as well; without it these are never read. SCALED:
    multiply compact numbers by the scales of their rows [C, R] and write the rows' rate factors; where a scale is zero,
    BACK takes the models' numbers.
    """
    client = tl.program_id(1).to(tl.int64)
    fact = facts + tl.load(tensors + tl.program_id(0)) * 8
    start, own, inputs, fan = tl.load(fact), tl.load(fact + 1), tl.load(fact + 2), tl.load(fact + 6)
    row = tl.load(fact + 7)
    size, rows, columns = tl.load(fact + 3), tl.load(fact + 4), tl.load(fact + 5)
    q = tl.load(firsts + tl.program_id(0)) + tl.arange(0, BLOCK)
    inside = q < size
    o, i, f = q // inputs, (q % inputs) // fan, q % fan  # a neuron has `fan` adjacent columns
    listed += client * NEURONS
    o = tl.where(rows >= 0, tl.load(listed + rows + o, mask=inside & (rows + 0 * q >= 0), other=-1), o)
    i = tl.where(columns >= 0, tl.load(listed + columns + i, mask=inside & (columns + 0 * q >= 0), other=-1), i)
    there = inside & (o >= 0) & (i >= 0)
    flat, mine = client * FLAT + start, own.to(tl.int64) * CLIENTS + client * size
    if BACK:
        value = tl.load(source + mine + o * inputs + i * fan + f, mask=there, other=0.0)
        if SCALED:
            factor = tl.load(scale + client * ROWS + row + q // inputs, mask=inside, other=1.0)
            still = factor == 0
            old = tl.load(models + client * MODEL + start + q, mask=there & still, other=0.0)
            value = tl.where(still, old, tl.div_rn(value, tl.where(still, 1.0, factor)))
        tl.store(target + flat + q, value, mask=inside)
    else:
        value = tl.load(source + flat + o * inputs + i * fan + f, mask=there, other=0.0)
        if SCALED:
            factor = tl.load(scale + client * ROWS + row + o, mask=inside & (o >= 0), other=0.0)
            value *= factor
            factor_at = row.to(tl.int64) * CLIENTS + client * (size // inputs) + q // inputs
            tl.store(rate_factors + factor_at, factor * factor, mask=inside & (q % inputs == 0))
        tl.store(target + mine + q, value, mask=inside if CLEAR else there)


class Compact:
    """Places of a cohort's kept neurons, and their weights: one tensor [C, ...] for each of the network's."""

    def __init__(self, neurons: NeuronMap, layout: Layout, like: Tensor, clear: bool) -> None:
        """`like`: models [C, P]. `clear`: write zeros beyond the kept neurons, for kernels that read them."""
        self.clients, self.flat = like.shape
        self.neurons, self.clear = neurons.size, clear
        spans = {group: (span.start, span.stop - span.start) for group, span in neurons.spans(neurons.size)}
        facts, starts = _facts(neurons, layout, {group: first for group, (first, _) in spans.items()})
        self.own = like.new_zeros(self.clients * (starts[-1]))
        self.tensors = {  # not views: autograd would take a change of one for a change of all
            name: like.new_empty(0).set_(self.own.untyped_storage(), self.clients * at, (self.clients, *shape))  # type: ignore[call-overload]
            for name, shape, at in zip(layout.names, layout.shapes, starts)
        }

        def table(values: list[list[int]] | list[int] | list[tuple[int, int]]) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=like.device)

        self.facts, self.spans = table(facts), table(list(spans.values()))
        blocks = [(n, first) for n, fact in enumerate(facts) for first in range(0, fact[3], BLOCK)]
        self.blocks = [table([block[k] for block in blocks]) for k in (0, 1)]
        self.live, self.rank = (table([0]).new_zeros(self.clients, self.neurons) for _ in range(2))
        self.kept = table([0]).new_zeros(len(spans), self.clients)
        self.counts = dict(zip(((group, 1) for group in spans), self.kept))  # [C] neurons kept of each group
        parts = (part for axes in neurons.axes.values() for axis in axes if axis for part in axis)
        for part in parts:  # the same in columns, where a neuron has several
            if part.group in spans and (part.group, part.fan) not in self.counts:
                self.counts[part.group, part.fan] = torch.zeros_like(self.kept[0])
        self.widest = tile_of(max(size for _, size in spans.values()), 2**20)

    def begin(self, keep: Tensor, first: Tensor, scaling: RowScaling | None) -> None:
        """Copy the kept neurons [C, K] of models [C, P], multiplied by their scales if there are any."""
        grid = len(keep), len(self.spans)
        _rank[grid](keep, self.spans, self.live, self.rank, self.kept, self.clients, self.neurons, WIDTH=self.widest)
        for (group, fan), count in self.counts.items():
            if fan > 1:
                torch.mul(self.counts[group, 1], fan, out=count)
        self._move(first, self.own, self.live, len(first), first.stride(0), False, scaling)

    def end(self, clients: int, scaling: RowScaling | None) -> Tensor:
        """The models [C, P] of the first `clients` clients: trained numbers of kept neurons, zeros elsewhere."""
        models = self.own.new_empty(clients, self.flat)
        self._move(self.own, models, self.rank, clients, self.flat, True, scaling)
        return models

    def _move(
        self,
        source: Tensor,
        target: Tensor,
        listed: Tensor,
        clients: int,
        flat: int,
        back: bool,
        scaling: RowScaling | None,
    ) -> None:
        own = self.own  # placeholder for tensors that are not read
        scale, rate_factors, models = (
            (own, own, own) if scaling is None else (scaling.scale, scaling.squared, scaling.first)
        )
        _arrange[(len(self.blocks[0]), clients)](
            source, target, listed, self.facts, *self.blocks, scale, rate_factors, models, flat, self.clients,
            self.neurons, scale.stride(0), models.stride(0),
            BACK=back, CLEAR=self.clear, SCALED=scaling is not None, BLOCK=BLOCK,
        )  # fmt: skip


def fits(neurons: NeuronMap) -> str:
    """Why these buffers cannot hold such a network; empty if every tensor has whole groups along its first two axes."""

    def whole(axis: tuple[Segment, ...] | None, fan: int) -> bool:
        """Whether an axis has one group from its first neuron to its last, or no neuron that is cut."""
        if axis is None or all(part.group in neurons.fixed for part in axis):
            return True
        return len(axis) == 1 and axis[0].stop - axis[0].start == neurons.widths[axis[0].group] and axis[0].fan <= fan

    mixed = [
        name
        for name, axes in neurons.axes.items()
        for place, axis in enumerate(axes)
        if not whole(axis, 2**31 if place == 1 else 1 if place == 0 else 0)
    ]
    return f"the axes of '{mixed[0]}' are not whole groups of neurons" if mixed else ""


def _facts(neurons: NeuronMap, layout: Layout, first: dict[str, int]) -> tuple[list[list[int]], list[int]]:
    """Eight numbers per tensor, which `_arrange` reads, and the tensors' compact starts with the end.

    The numbers: start in a model, compact start, columns, size, first neuron of the rows and of the columns in a keep
    (-1: never cut), columns per neuron, and first row among all tensors' rows.
    """
    sizes = [prod(shape) for shape in layout.shapes]
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + -(-size // 16) * 16)  # aligned, so that the GPU reads many numbers at once
    facts, begin, row = [], 0, 0
    for name, shape, size, (own, _) in zip(layout.names, layout.shapes, sizes, pairwise(starts)):
        groups = [axis[0].group if axis else "" for axis in neurons.axes[name][:2]] + [""]
        columns, (rows, fed) = prod(shape[1:]), groups[:2]
        fan = columns // neurons.widths[fed] if fed in first else 1
        facts.append([begin, own, columns, size, first.get(rows, -1), first.get(fed, -1), fan, row])
        begin, row = begin + size, row + size // columns
    return facts, starts
