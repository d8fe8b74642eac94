"""Which examples are whose?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.client import Examples
from fedloom.local.work import FEW


class Shards:
    """Which examples are whose: one list after another."""

    resident = True  # are all examples where they are trained on?

    def __init__(self, clients: Sequence[Tensor | NDArray[np.int64]], device: torch.device) -> None:
        self.sizes = [len(one) for one in clients]
        whole = np.concatenate([np.empty(0, np.int64), *clients])  # arrays: a tensor for each would cost a large fleet
        self.examples = torch.from_numpy(whole).to(device)
        self._first = torch.tensor([0, *self.sizes], device=device).cumsum(0)

    @classmethod
    def of(cls, examples: Tensor, sizes: list[int], device: torch.device) -> Shards:
        """The same from lists that stand one after another already."""
        shards = cls([], device)
        shards.sizes, shards.examples = sizes, examples.to(device)
        shards._first = torch.tensor([0, *sizes], device=device).cumsum(0)
        return shards

    def rows(self, ids: Tensor, widest: int) -> Tensor:
        """The examples of each client [C, widest]; short lists are padded with their own last example."""
        if ids.device.type == "cpu" and len(ids) * widest < FEW:  # so few that torch's calls take most of the time
            places, whose = self._first.numpy(), ids.numpy()
            begin = places[whose][:, None]
            inside = np.minimum(np.arange(widest), places[whose + 1][:, None] - begin - 1)
            return torch.from_numpy(self.examples.numpy()[begin + inside])
        first, size = self._first[ids], self._first[ids + 1] - self._first[ids]
        inside = torch.arange(widest, device=ids.device).minimum(size[:, None] - 1)
        return self.examples[first[:, None] + inside]

    def hand(self, data: Examples, ids: Tensor, listed: list[int]) -> tuple[Examples, Tensor]:
        """These clients' examples: a data set, and the rows of each in it [C, widest]."""
        return data, self.rows(ids, max(1, *(self.sizes[i] for i in listed)))

    def pieces(self, data: Examples, most: int) -> Iterator[tuple[Examples, Tensor]]:
        """Everybody's examples, client after client, `most` at a time: a data set and rows in it."""
        yield from ((data, part) for part in self.examples.split(most))

    def soon(self, listed: list[int]) -> None:
        """These clients are next: nothing to do where all examples are at hand."""
