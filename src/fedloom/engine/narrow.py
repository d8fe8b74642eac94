"""Chains of linear layers of which every client keeps other neurons: the kept ones' weights are moved to the front.

Kernels then read a client's part of each weight as one block, however large it is, and leave out the rest.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedloom.engine.kernels import tile_of
from fedloom.layout import Layout

if TYPE_CHECKING:
    from fedloom.engine.chain import Link

BLOCK = 1024  # numbers that a program moves


@triton.jit  # type: ignore[untyped-decorator]
def _rank(keep, spans, live, rank, kept, CLIENTS, NEURONS, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which of a layer's neurons a client keeps, where each stands among them, and how many they are; -1: none."""
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
    source, target, listed, facts, tensors, firsts, FLAT, CLIENTS, NEURONS, BACK: tl.constexpr, BLOCK: tl.constexpr
):
    """From models [C, P] to tensors of their own, kept neurons first, or BACK, with zero where a neuron is not kept."""
    client = tl.program_id(1).to(tl.int64)
    fact = facts + tl.load(tensors + tl.program_id(0)) * 6
    start, own, inputs = tl.load(fact), tl.load(fact + 1), tl.load(fact + 2)
    size, rows, columns = tl.load(fact + 3), tl.load(fact + 4), tl.load(fact + 5)
    q = tl.load(firsts + tl.program_id(0)) + tl.arange(0, BLOCK)
    inside = q < size
    o, i = q // inputs, q % inputs
    listed += client * NEURONS
    o = tl.where(rows >= 0, tl.load(listed + rows + o, mask=inside & (rows + 0 * q >= 0), other=-1), o)
    i = tl.where(columns >= 0, tl.load(listed + columns + i, mask=inside & (columns + 0 * q >= 0), other=-1), i)
    there = inside & (o >= 0) & (i >= 0)
    flat, mine = client * FLAT + start, own.to(tl.int64) * CLIENTS + client * size
    if BACK:
        value = tl.load(source + mine + o * inputs + i, mask=there, other=0.0)
        tl.store(target + flat + q, value, mask=inside)
    else:
        value = tl.load(source + flat + o * inputs + i, mask=there, other=0.0)
        tl.store(target + mine + q, value, mask=there)


class Narrow:
    """Where a cohort's kept neurons stand, and their weights, each tensor [C, ...] by itself."""

    def __init__(self, links: tuple[Link, ...], layout: Layout, spans: list[tuple[int, int]], like: Tensor) -> None:
        """`spans`: where each hidden layer's neurons begin in a keep, and how many they are. `like`: models [C, P]."""
        self.clients, self.flat = like.shape
        self.neurons = sum(size for _, size in spans)
        facts, starts = _facts(links, layout, spans)
        self.own = like.new_zeros(self.clients * (starts[-1]))
        self.tensors = {
            name: self.own[self.clients * at :][: self.clients * shape.numel()].view(self.clients, *shape)
            for name, shape, at in zip(layout.names, map(torch.Size, layout.shapes), starts)
        }

        def table(values: list[list[int]] | list[int] | list[tuple[int, int]]) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=like.device)

        self.facts, self.spans = table(facts), table(spans)
        blocks = [(n, first) for n, fact in enumerate(facts) for first in range(0, fact[3], BLOCK)]
        self.blocks = [table([block[k] for block in blocks]) for k in (0, 1)]
        self.live, self.rank = (table([0]).new_zeros(self.clients, self.neurons) for _ in range(2))
        self.kept = table([0]).new_zeros(len(spans), self.clients)
        self.widest = tile_of(max(size for _, size in spans), 2**20)

    def begin(self, keep: Tensor, first: Tensor) -> None:
        """Take the kept neurons [C, K] of these models [C, P]."""
        grid = len(keep), len(self.spans)
        _rank[grid](keep, self.spans, self.live, self.rank, self.kept, self.clients, self.neurons, WIDTH=self.widest)
        self._move(first, self.own, self.live, len(first), first.stride(0), False)

    def end(self, clients: int) -> Tensor:
        """The first so many models [C, P] with what became of these neurons; the rest is zero."""
        models = self.own.new_empty(clients, self.flat)
        self._move(self.own, models, self.rank, clients, self.flat, True)
        return models

    def _move(self, source: Tensor, target: Tensor, listed: Tensor, clients: int, flat: int, back: bool) -> None:
        _arrange[(len(self.blocks[0]), clients)](
            source, target, listed, self.facts, *self.blocks, flat, self.clients, self.neurons, BACK=back, BLOCK=BLOCK,
        )  # fmt: skip


def _facts(links: tuple[Link, ...], layout: Layout, spans: list[tuple[int, int]]) -> tuple[list[list[int]], list[int]]:
    """Of every tensor: where it begins in a model and among a client's own, its columns and numbers, and where the
    neurons of its rows and columns begin in a keep (-1: they are never cut). Then where each begins, and the end."""
    rows = [first for first, _ in spans] + [-1]
    cut = {f"{link.name}.weight": (rows[n], rows[n - 1] if n else -1) for n, link in enumerate(links)}
    cut |= {f"{link.name}.bias": (rows[n], -1) for n, link in enumerate(links)}
    sizes = [torch.Size(shape).numel() for shape in layout.shapes]
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + -(-size // 16) * 16)  # where the device can read many numbers at once
    facts, begin = [], 0
    for name, shape, size, (own, _) in zip(layout.names, layout.shapes, sizes, pairwise(starts)):
        facts.append([begin, own, shape[1] if len(shape) > 1 else 1, size, *cut[name]])
        begin += size
    return facts, starts
