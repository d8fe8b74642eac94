"""Triton kernel for FedDD's importance: sums along rows in one pass over the models, without an array of their size."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedloom.core.types import largest
from fedloom.neurons.map import NeuronMap
from fedloom.parts.upload.importance import eps_of, layers

ROWS, COLUMNS = 4, 256  # that one program reads at a time


@triton.jit  # type: ignore[untyped-decorator]
def _row_sums(  # type: ignore[no-untyped-def]
    first, last, eps, out, blocks, LAYERS, OUT, FIRST, LAST, SQUARE: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr
):
    """The sum of (squared) importances along each of a client's rows."""
    client, block = tl.program_id(1).to(tl.int64), blocks + tl.program_id(0) * 6
    start, rows, columns = tl.load(block), tl.load(block + 1), tl.load(block + 2)
    layer, place, row = tl.load(block + 3), tl.load(block + 4), tl.load(block + 5)
    floor = tl.load(eps + client * LAYERS + layer)
    r = row + tl.arange(0, BR)
    first += client * FIRST + start
    last += client * LAST + start
    acc = tl.zeros((BR, BC), dtype=tl.float32)
    for column in range(0, columns, BC):
        c = column + tl.arange(0, BC)
        inside = (r < rows)[:, None] & (c < columns)[None, :]
        at = r[:, None] * columns + c[None, :]
        was, now = tl.load(first + at, mask=inside, other=0.0), tl.load(last + at, mask=inside, other=0.0)
        value = tl.abs(now - was) * tl.abs(now) / (tl.abs(was) + floor)
        acc += value * value if SQUARE else value
    tl.store(out + client * OUT + place + r, tl.sum(acc, 1), mask=r < rows)


class _Plan(NamedTuple):
    """The places of a network's rows."""

    spans: list[list[slice]]  # of every layer, in the model's numbers
    blocks: Tensor  # [B, 6] see `_row_sums`
    neurons: Tensor  # [R] the neuron of each row


@lru_cache(maxsize=16)
def _planned(neurons: NeuronMap, device: torch.device) -> _Plan:
    """The places of all rows that lead into neurons, layer by layer."""
    spans, blocks, owners, place = list[list[slice]](), list[tuple[int, ...]](), list[Tensor](), 0
    for layer, group in enumerate(layers(neurons)):
        own: list[slice] = []
        for tensor in group:
            if own and own[-1].stop == tensor.start:  # a bias behind its weight
                own[-1] = slice(own[-1].start, tensor.stop)
            else:
                own.append(slice(tensor.start, tensor.stop))
            if tensor.output is None or (which := tensor.along[tensor.output]) is None:
                continue
            rows = tensor.shape[0]
            facts = tensor.start, rows, (tensor.stop - tensor.start) // rows, layer, place
            blocks += [(*facts, row) for row in range(0, rows, ROWS)]
            owners.append(neurons.lists[which])
            place += rows
        spans.append(own)
    return _Plan(spans, torch.tensor(blocks, dtype=torch.int32, device=device), torch.cat(owners).to(device))


def row_sums(neurons: NeuronMap, first: Tensor, last: Tensor, floor: float, power: int) -> Tensor:
    """Sums of the importances, to this power, of what leads into each neuron [C, K + O]."""
    plan = _planned(neurons, last.device)
    sizes = [torch.stack([largest(v[:, s]) for s in own]).amax(0) for v in (first, last) for own in plan.spans]
    before, after = torch.stack(sizes, 1).unflatten(1, (2, -1)).unbind(1)  # [C, L] each
    eps = eps_of(before, after, floor)
    sums = last.new_empty(len(last), len(plan.neurons))
    _row_sums[(len(plan.blocks), len(last))](
        first, last, eps, sums, plan.blocks, len(plan.spans), len(plan.neurons), first.stride(0), last.stride(0),
        SQUARE=power == 2, BR=ROWS, BC=COLUMNS, num_warps=4,
    )  # fmt: skip
    total = last.new_zeros(len(last), neurons.full_size + 1)
    return total.index_add_(1, plan.neurons, sums)[:, : neurons.full_size]
