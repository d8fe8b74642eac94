"""Which examples are whose?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.core.types import Examples
from fedloom.core.work import FEW


class Shards:
    """Which examples are whose: one list after another."""

    resident = True  # are all examples where they are trained on?

    def __init__(self, clients: Sequence[Tensor | NDArray[np.int64]], device: torch.device) -> None:
        self.sizes = [len(one) for one in clients]
        whole = np.concatenate([np.empty(0, np.int64), *clients])  # arrays: a tensor for each would cost a large fleet
        self.examples = torch.from_numpy(whole).to(device)
        self._first = torch.tensor([0, *self.sizes], device=device).cumsum(0)
        self._all = _common_size(self.sizes)
        self._last: tuple[list[int], Tensor] | None = None  # who was asked for last, and their rows

    @classmethod
    def of(cls, examples: Tensor, sizes: list[int], device: torch.device) -> Shards:
        """The same from lists that stand one after another already."""
        shards = cls([], device)
        shards.sizes, shards.examples = sizes, examples.to(device)
        shards._first, shards._all = torch.tensor([0, *sizes], device=device).cumsum(0), _common_size(sizes)
        return shards

    def rows(self, ids: Tensor, widest: int) -> Tensor:
        """The examples of each client [C, widest]; short lists are padded with their own last example."""
        if ids.device.type == "cpu" and len(ids) * widest < FEW:  # so few that torch's calls take most of the time
            places, whose = self._first.numpy(), ids.numpy()
            first, after = places[whose][:, None], places[whose + 1][:, None]
            return torch.from_numpy(self.examples.numpy()[np.minimum(first + np.arange(widest), after - 1)])
        if self._all == widest:
            return self.examples.view(-1, widest).index_select(0, ids)
        begin, end = self._first[ids, None], self._first[1:][ids, None]
        return self.examples[(begin + torch.arange(widest, device=ids.device)).minimum(end - 1)]

    def examples_of(self, data: Examples, ids: Tensor, listed: list[int]) -> tuple[Examples, Tensor]:
        """These clients' examples: a data set, and the rows of each in it [C, widest]."""
        if self._last is None or self._last[0] != listed:  # often the same are asked for again
            self._last = list(listed), self.rows(ids, max(1, *(self.sizes[i] for i in listed)))
        return data, self._last[1]

    def pieces(self, data: Examples, most: int) -> Iterator[tuple[Examples, Tensor]]:
        """Everybody's examples, client after client, `most` at a time: a data set and rows in it."""
        yield from ((data, part) for part in self.examples.split(most))

    def prefetch(self, listed: list[int]) -> None:
        """These clients are next: nothing to do where all examples are at hand."""


def _common_size(sizes: list[int]) -> int | None:
    """How long all lists are, if they are equally long and not empty."""
    return sizes[0] if sizes and sizes[0] and min(sizes) == max(sizes) else None
