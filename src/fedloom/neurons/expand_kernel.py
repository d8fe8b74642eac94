"""Triton kernel that expands kept neurons to masks over numbers and writes nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedloom.neurons.axes import on_axis

if TYPE_CHECKING:
    from fedloom.neurons.map import NeuronMap

CLIENTS, NUMBERS = 8, 256  # that a program writes


@triton.jit  # type: ignore[untyped-decorator]
def _expand(  # type: ignore[no-untyped-def]
    keep, owners, out, COUNT, SIZE, KEEP, WIDTH, OWNERS: tl.constexpr, CLIENTS: tl.constexpr, NUMBERS: tl.constexpr
):
    """Whether all owners of a number are kept; owners at WIDTH and beyond always are."""
    n = tl.program_id(0) * NUMBERS + tl.arange(0, NUMBERS)
    c = (tl.program_id(1) * CLIENTS + tl.arange(0, CLIENTS)).to(tl.int64)
    inside = n < SIZE
    here = (c < COUNT)[:, None] & inside[None, :]
    kept = here
    for _ in tl.static_range(OWNERS):
        owner = tl.load(owners + n, mask=inside, other=WIDTH)  # read once for all CLIENTS
        cut = here & (owner < WIDTH)[None, :]
        kept = kept & (tl.load(keep + c[:, None] * KEEP + owner[None, :], mask=cut, other=1) != 0)
        owners += SIZE
    tl.store(out + c[:, None] * SIZE + n[None, :], kept, mask=here)


def _owners(neurons: NeuronMap, rows: bool, device: torch.device) -> Tensor:
    """The neurons that own each number [A, P], as places in a keep; K + O, which is never cut, pads numbers with fewer.

    Made on the host: all streams see what is copied from there.
    """
    most = max(len(tensor.owners(rows)) for tensor in neurons.tensors)
    table = torch.full((most, neurons.total), neurons.full_size, dtype=torch.int32)
    lists = [entries.cpu().int() for entries in neurons.lists]
    for tensor in neurons.tensors:
        for (axis, which), row in zip(tensor.owners(rows), table):
            part = row[tensor.start : tensor.stop].view(1, *tensor.shape)
            part.copy_(on_axis(lists[which][None], axis, len(tensor.shape)))
    return table.to(device)


def expanded(neurons: NeuronMap, keep: Tensor, rows: bool) -> Tensor | None:
    """Masks [C, P] of keeps [C, K] or [C, K + O]. None while a graph is captured for which no table is ready."""
    key = rows, keep.device
    if key not in neurons.owners:
        if keep.is_cuda and torch.cuda.is_current_stream_capturing():
            return None
        neurons.owners[key] = _owners(neurons, *key)
    owners = neurons.owners[key]
    keep = keep if keep.stride(1) == 1 else keep.contiguous()
    (count, width), size = keep.shape, neurons.total
    mask = torch.empty(count, size, dtype=torch.bool, device=keep.device)
    if count:
        _expand[(triton.cdiv(size, NUMBERS), triton.cdiv(count, CLIENTS))](
            keep, owners, mask, count, size, keep.stride(0), width,
            OWNERS=len(owners), CLIENTS=CLIENTS, NUMBERS=NUMBERS, num_warps=4,
        )  # fmt: skip
    return mask
