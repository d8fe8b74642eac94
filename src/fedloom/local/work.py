"""How much does a client work in a round, and on which examples at each step?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.errors import BadExperiment
from fedloom.types import listed


class Batches(NamedTuple):
    """A cohort's examples for one round. Clients stand in falling order of steps."""

    examples: Tensor  # [C, S, B] rows of the data set
    real: Tensor  # [C, S, B] False pads short batches
    steps: Tensor  # [C]
    active: list[int]  # for every step, how many clients (the first so many) still take it
    keys: Tensor  # [C, S] chance for the network's own randomness (dropout)


@dataclass(frozen=True)
class Work:
    """So many passes over the client's data, or so many steps, in batches; `batch` 0 takes all examples at once."""

    epochs: int = 5
    steps: int | None = None  # instead of epochs
    batch: int = 10

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise BadExperiment(f"epochs is {self.epochs}; a client makes at least 1 pass over its data.")
        if self.steps is not None and self.steps < 1:
            raise BadExperiment(f"steps is {self.steps}; a client takes at least 1 step, or none is set.")
        if self.batch < 0:
            raise BadExperiment(f"batch is {self.batch}; a batch has at least 1 example, or 0 for all of them.")

    def steps_of(self, sizes: list[int]) -> list[int]:
        """How many steps clients with so many examples take."""
        if self.steps is not None:
            return [self.steps] * len(sizes)
        return [self.epochs * (-(-size // self.batch) if self.batch else 1) for size in sizes]

    def plan(self, ids: Tensor, examples: Tensor, sizes: list[int], chance: Chance) -> Batches:
        """Each epoch is a fresh order of the client's own examples [C, M] (padded), cut into batches."""
        steps = self.steps_of(sizes)
        longest, widest = max(steps), max(sizes)
        width = min(self.batch, widest) if self.batch else widest
        passes = [-(-size // width) for size in sizes]  # steps in one epoch of each client
        epochs = max(-(-taken // one) for taken, one in zip(steps, passes))
        size, per_epoch = listed([sizes, passes], ids.device)[:, :, None]  # [C, 1] each
        place = torch.arange(widest, device=ids.device)
        epoch = torch.arange(epochs, device=ids.device)
        keys = chance.key("batches", ids[:, None, None], epoch[:, None], place)  # [C, E, M]
        keys = keys.masked_fill((place >= size)[:, None], torch.iinfo(torch.int64).max)  # padding goes last
        order = keys.argsort(dim=-1, stable=True)
        step = torch.arange(longest, device=ids.device)
        inside = ((step % per_epoch) * width)[:, :, None] + torch.arange(width, device=ids.device)  # [C, S, B]
        epoch_of = (step // per_epoch).clamp(max=epochs - 1)  # those who are done wait in their last epoch
        which = epoch_of[:, :, None] * widest + inside.clamp(max=widest - 1)
        chosen = examples.gather(1, order.flatten(1).gather(1, which.flatten(1))).view_as(inside)
        active = [sum(taken > k for taken in steps) for k in range(longest)]
        return Batches(
            examples=chosen,
            real=inside < size[:, :, None],
            steps=listed(steps, ids.device),
            active=active,
            keys=chance.key("network", ids[:, None], step),
        )
