"""The examples of each client, as row numbers of one data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.core.types import Examples
from fedloom.core.work import FEW


class Shards:
    """The row numbers of every client's examples, in one tensor, client after client."""

    resident = True  # whether all examples lie on the device that trains

    def __init__(self, clients: Sequence[Tensor | NDArray[np.int64]], device: torch.device) -> None:
        self.sizes = [len(one) for one in clients]
        whole = np.concatenate([np.empty(0, np.int64), *clients])  # a tensor per client would be slow for large fleets
        self.examples = torch.from_numpy(whole).to(device)
        self._first = torch.tensor([0, *self.sizes], device=device).cumsum(0)
        self._common_size = _common_size(self.sizes)
        self._last: tuple[list[int], Tensor] | None = None  # clients of the last call of `examples_of`, and their rows

    @classmethod
    def of(cls, examples: Tensor, sizes: list[int], device: torch.device) -> Shards:
        """Make shards from lists that are concatenated already, of these sizes."""
        shards = cls([], device)
        shards.sizes, shards.examples = sizes, examples.to(device)
        shards._first, shards._common_size = torch.tensor([0, *sizes], device=device).cumsum(0), _common_size(sizes)
        return shards

    def rows(self, ids: Tensor, widest: int) -> Tensor:
        """The row numbers of each client's examples [C, widest]; short lists are padded with their last example."""
        if ids.device.type == "cpu" and len(ids) * widest < FEW:  # so few that torch's calls take most of the time
            places, whose = self._first.numpy(), ids.numpy()
            first, after = places[whose][:, None], places[whose + 1][:, None]
            return torch.from_numpy(self.examples.numpy()[np.minimum(first + np.arange(widest), after - 1)])
        if self._common_size == widest:
            return self.examples.view(-1, widest).index_select(0, ids)
        begin, end = self._first[ids, None], self._first[1:][ids, None]
        return self.examples[(begin + torch.arange(widest, device=ids.device)).minimum(end - 1)]

    def examples_of(self, data: Examples, ids: Tensor, listed: list[int]) -> tuple[Examples, Tensor]:
        """The examples of clients `ids`: a data set, and each client's rows in it [C, widest]."""
        if self._last is None or self._last[0] != listed:  # it is often called again for the same clients
            self._last = list(listed), self.rows(ids, max(1, *(self.sizes[i] for i in listed)))
        return data, self._last[1]

    def pieces(self, data: Examples, most: int) -> Iterator[tuple[Examples, Tensor]]:
        """All clients' examples, client after client, at most `most` at a time: a data set and rows in it."""
        yield from ((data, part) for part in self.examples.split(most))

    def prefetch(self, listed: list[int]) -> None:
        """Prepare to read the examples of clients that train next; nothing to do where all lie on the device."""


def _common_size(sizes: list[int]) -> int | None:
    """The size of all lists, if they are equally long and not empty; else None."""
    return sizes[0] if sizes and sizes[0] and min(sizes) == max(sizes) else None
