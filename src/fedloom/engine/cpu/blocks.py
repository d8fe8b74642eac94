"""Transformed examples of all steps of some clients in one block, for code that takes all steps in one call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from fedloom.core.goal import Transform
from fedloom.core.types import Examples
from fedloom.core.work import Batches
from fedloom.engine.feed import gather

SMALL, LARGEST = 2**25, 2**28  # bytes of examples up to which clients share a block, and which no block exceeds


class Block(NamedTuple):
    """The examples of some clients' steps."""

    clients: slice
    data: Examples
    batches: Batches  # of these clients, which index `data`


def blocks(data: Examples, batches: Batches, transform: Transform, threads: int) -> Iterator[Block] | None:
    """All clients' examples as the transform makes them, in blocks of one client for each thread, or of more if small.

    None: those of one client are too large. Only one block is held at a time.
    """
    each = batches.examples.shape[2] * data.x[:1].nbytes
    sizes = [steps * each for steps in batches.steps.tolist()]  # in falling order
    if sizes and sizes[0] > LARGEST:
        return None
    return (_block(data, batches, transform, some) for some in _groups(sizes, threads))


def _groups(sizes: list[int], threads: int) -> Iterator[slice]:
    """Clients whose examples lie in one block."""
    first = 0
    while first < len(sizes):
        one = max(1, sizes[first])
        count = min(max(threads, SMALL // one), max(1, LARGEST // one))
        count = count // threads * threads or count  # so that no thread waits
        yield slice(first, min(first + count, len(sizes)))
        first += count


def _block(data: Examples, batches: Batches, transform: Transform, some: slice) -> Block:
    """The examples of these clients' steps, one after another."""
    rows, real, steps, keys = (t[some] for t in (batches.examples, batches.real, batches.steps, batches.keys))
    per_epoch = batches.per_epoch[some]
    taken = torch.arange(rows.shape[1]) < steps[:, None]  # [C, S]
    x, y = gather(data, rows[taken], real[taken], keys[taken], transform)
    places = torch.arange(x.shape[0] * x.shape[1]).view(x.shape[:2])
    order = torch.zeros_like(rows).masked_scatter_(taken[:, :, None], places)
    own = Batches(order, real, steps, taken.sum(0).tolist(), keys, per_epoch)
    return Block(some, Examples(x.flatten(0, 1).contiguous(), y.flatten(0, 1).contiguous()), own)
