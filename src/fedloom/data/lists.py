"""Each client's list of examples, all lists in one array, so that a large fleet needs few objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from fedloom.data.sampling import Ints


class Lists(Sequence[Ints]):
    """A list of examples for each client; it can be read like a list of arrays."""

    def __init__(self, examples: Ints, sizes: Ints) -> None:
        self.examples = examples  # [n] one list after another
        self.sizes = sizes  # [N]
        self._end = np.cumsum(sizes)

    @classmethod
    def of(cls, lists: Iterable[Ints]) -> Lists:
        """Join separate arrays."""
        if isinstance(lists, cls):
            return lists
        arrays = list(lists)
        sizes = np.array([len(one) for one in arrays], np.int64)
        return cls(np.concatenate([np.empty(0, np.int64), *arrays]), sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, client: int) -> Ints: ...
    @overload
    def __getitem__(self, client: slice) -> Lists: ...
    def __getitem__(self, client: int | slice) -> Ints | Lists:
        if isinstance(client, slice):
            return self.at(np.arange(len(self))[client])
        end = self._end[client]
        return self.examples[end - self.sizes[client] : end]

    @property
    def owner(self) -> Ints:
        """The client of each example [n]."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @property
    def place(self) -> Ints:
        """Each example's index in its list [n]."""
        return np.arange(len(self.examples)) - np.repeat(self._end - self.sizes, self.sizes)

    def where(self, chosen: NDArray[np.bool_]) -> Lists:
        """The lists with only the examples in the mask `chosen` [n]."""
        return Lists(self.examples[chosen], np.bincount(self.owner[chosen], minlength=len(self)))

    def at(self, clients: Ints) -> Lists:
        """The lists of some clients, in their order."""
        return from_ranges(self.examples, (self._end - self.sizes)[clients], self.sizes[clients])


def from_ranges(examples: Ints, first: Ints, sizes: Ints) -> Lists:
    """One list for each range of `examples`, from `first` [N] on, `sizes` [N] long."""
    start = np.cumsum(sizes) - sizes
    return Lists(examples[np.arange(int(sizes.sum())) + np.repeat(first - start, sizes)], sizes)
