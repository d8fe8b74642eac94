"""Work of clients in a round: how many steps they take, and on which examples.

Shapes: C clients in the cohort, M examples of the largest client, S steps, B examples in a batch, E epochs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedloom.accel.capture import Captured
from fedloom.chance import Chance, absorb, absorb_here
from fedloom.errors import BadExperiment

FEW = 2**14  # examples; fewer are shuffled by NumPy, since calls then take most of the time


class Batches(NamedTuple):
    """A cohort's examples for one round. Clients are in falling order of steps."""

    examples: Tensor  # [C, S, B] rows of the data set
    real: Tensor  # [C, S, B] False pads short batches
    steps: Tensor  # [C]
    active: list[int]  # for every step, the number of clients that take it: the first ones
    keys: Tensor  # [C, S] random keys for the network's own randomness (dropout)
    per_epoch: Tensor  # [C] steps of one pass over a client's examples


@dataclass(frozen=True)
class Work:
    """`epochs` passes over a client's data, or `steps` steps, in batches; `batch` 0 takes all examples at once.

    Each batch is used `repeat` times in a row, which makes as many times the steps.
    """

    epochs: int = 5
    steps: int | None = None  # instead of epochs
    batch: int = 10
    repeat: int = 1

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise BadExperiment(f"epochs is {self.epochs}; a client makes at least 1 pass over its data.")
        if self.steps is not None and self.steps < 1:
            raise BadExperiment(f"steps is {self.steps}; a client takes at least 1 step, or none is set.")
        if self.repeat < 1:
            raise BadExperiment(f"repeat (uses of a batch) is {self.repeat}; it is at least 1.")
        if self.batch < 0:
            raise BadExperiment(f"batch is {self.batch}; a batch has at least 1 example, or 0 for all of them.")

    def steps_of(self, sizes: list[int]) -> list[int]:
        """The number of steps of clients that have `sizes` examples."""
        if self.steps is not None:
            return [self.steps * self.repeat] * len(sizes)
        return [self.repeat * self.epochs * (-(-size // self.batch) if self.batch else 1) for size in sizes]

    def plan(self, ids: Tensor, examples: Tensor, sizes: list[int], chance: Chance) -> Batches:
        """Shuffle each client's examples [C, M] (padded) anew for every epoch, and cut them into batches."""
        if self.repeat > 1:
            return _repeated(replace(self, repeat=1).plan(ids, examples, sizes, chance), self.repeat)
        facts, active, width, epochs = _schedule(self, tuple(sizes), ids.device)
        inputs = (ids, examples, facts, chance.key("batches"), chance.key("network"))
        few = ids.device.type == "cpu" and examples.numel() * epochs < FEW
        chosen, real, keys = (_deal_few if few else _dealt)(inputs, len(active), width, epochs)
        return Batches(chosen, real, facts[2].clone(), list(active), keys, facts[1].clone())  # cached facts stay


def _repeated(batches: Batches, times: int) -> Batches:
    """Every step `times` times in a row."""
    examples, real, keys = (own.repeat_interleave(times, 1) for own in (batches.examples, batches.real, batches.keys))
    return Batches(examples, real, batches.steps * times, [n for n in batches.active for _ in range(times)], keys,
        batches.per_epoch * times)  # fmt: skip


@lru_cache(maxsize=16)
def _schedule(work: Work, sizes: tuple[int, ...], device: torch.device) -> tuple[Tensor, tuple[int, ...], int, int]:
    """Examples, steps per epoch and steps of clients [3, C], active clients per step, batch size and epochs."""
    steps, widest = work.steps_of(list(sizes)), max(sizes)
    width = min(work.batch, widest) if work.batch else widest
    passes = [-(-size // width) for size in sizes]
    epochs = max(-(-taken // one) for taken, one in zip(steps, passes))
    active = (np.array(steps) > np.arange(max(steps))[:, None]).sum(1).tolist()
    facts = torch.tensor([sizes, passes, steps]).to(device, non_blocking=True)
    return facts, tuple(active), width, epochs


def _deal(inputs: tuple[Tensor, ...], longest: int, width: int, epochs: int) -> tuple[Tensor, ...]:
    """Examples, which of them are real [C, S, B each], and keys for the network [C, S]."""
    ids, examples, facts, order_key, network_key = inputs
    widest, device = examples.shape[1], ids.device
    size, per_epoch = facts[0, :, None], facts[1, :, None]
    place, epoch = torch.arange(widest, device=device), torch.arange(epochs, device=device)
    keys = absorb(absorb(absorb(order_key, ids[:, None, None]), epoch[:, None]), place)  # [C, E, M]
    keys = keys.masked_fill((place >= size)[:, None], torch.iinfo(torch.int64).max)  # padding sorts last
    order = keys.argsort(dim=-1, stable=True)
    step = torch.arange(longest, device=device)
    inside = ((step % per_epoch) * width)[:, :, None] + torch.arange(width, device=device)  # [C, S, B]
    epoch_of = (step // per_epoch).clamp(max=epochs - 1)  # clients that are done stay in their last epoch
    which = epoch_of[:, :, None] * widest + inside.clamp(max=widest - 1)
    chosen = examples.gather(1, order.flatten(1).gather(1, which.flatten(1))).view_as(inside)
    return chosen, inside < size[:, :, None], absorb(absorb(network_key, ids[:, None]), step)


def _deal_few(inputs: tuple[Tensor, ...], longest: int, width: int, epochs: int) -> tuple[Tensor, ...]:
    """As `_deal`, by NumPy on the host: half the time for few examples."""
    ids, examples, facts, order_key, network_key = (one.numpy() for one in inputs)
    size, per_epoch = facts[0, :, None], facts[1, :, None]
    widest, clients = examples.shape[1], len(ids)
    place, step = np.arange(widest), np.arange(max(longest, epochs))
    both = np.array([order_key, network_key]).view(np.uint64)
    turns = absorb_here(absorb_here(both[:, None], ids)[:, :, None], step)  # [2, C, epochs or steps]
    keys = absorb_here(turns[0, :, :epochs, None], place).view(np.int64)  # [C, E, M]
    full = size.min() == widest
    if not full:
        keys[np.broadcast_to((place >= size)[:, None], keys.shape)] = np.iinfo(np.int64).max  # padding goes last
    order, row = keys.argsort(axis=-1, kind="stable").reshape(clients, -1), np.arange(clients)[:, None]
    if full and widest % width == 0:  # every batch is full and starts where the one before ends
        chosen = examples[row, order[:, : longest * width]].reshape(clients, longest, width)
        real = np.ones(chosen.shape, np.bool_)
    else:
        step = step[:longest]
        inside = ((step % per_epoch) * width)[:, :, None] + np.arange(width)  # [C, S, B]
        epoch_of = np.minimum(step // per_epoch, epochs - 1)  # those who are done wait in their last epoch
        which = epoch_of[:, :, None] * widest + np.minimum(inside, widest - 1)
        chosen, real = examples[row[:, :, None], order[row[:, :, None], which]], inside < size[:, :, None]
    return tuple(torch.from_numpy(one) for one in (chosen, real, turns[1, :, :longest].view(np.int64)))


_dealt = Captured(_deal)
