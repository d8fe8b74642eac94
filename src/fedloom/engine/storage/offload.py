"""Examples that do not fit on the device that trains: a chunk's examples are fetched when it trains."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedloom.core.types import Examples, listed as on_device
from fedloom.engine.storage.backing import Backing, Place
from fedloom.engine.storage.shards import Shards

PIECE = 2**26  # bytes that are copied at a time into the backing memory


class OffloadedShards(Shards):
    """Shards in host memory or in a file, each client's examples in one block, so that fetching them is a plain copy.

    Fetched examples lie in a static buffer, from which captured steps read the next chunk too. On a GPU, copies run on
    their own stream into a second buffer while the previous chunk trains.
    """

    resident = False

    def __init__(self, data: Examples, shards: Shards, device: torch.device, place: Place, capacity: int = 0) -> None:
        """`data` and `shards` lie on the host; `capacity`: the expected number of examples of a chunk, at most."""
        self.sizes, self.examples, self._first = shards.sizes, shards.examples, shards._first
        self._start: list[int] = self._first.tolist()
        self._device = device
        self._backings = [Backing(len(self.examples), tuple(v.shape[1:]), v.dtype, place, device) for v in data]
        for own, values in zip(self._backings, data):
            own.reserve(len(self.examples))
            some = max(1, PIECE // max(1, values[:1].nbytes))
            for first in range(0, len(self.examples), some):
                which = self.examples[first : first + some]
                own.rows[first : first + len(which)] = values[which]
        self._capacity = 0
        self._copy_stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._grow(capacity)

    def _grow(self, capacity: int) -> None:
        """Make buffers for `capacity` examples; they at least double, since steps are captured anew for new buffers."""
        if capacity <= self._capacity:
            return
        if self._copy_stream is not None:
            self._copy_stream.synchronize()
        self._capacity = max(capacity, 2 * self._capacity)

        def buffers() -> Examples:
            stored = (own.rows for own in self._backings)
            return Examples(*(r.new_zeros((self._capacity, *r.shape[1:]), device=self._device) for r in stored))

        self._buffer = buffers()
        self._next_buffer = self._buffer if self._copy_stream is None else buffers()
        if self._copy_stream is not None:
            self._copy_stream.wait_stream(torch.cuda.current_stream(self._device))

    def examples_of(self, data: Examples, ids: Tensor, listed: list[int]) -> tuple[Examples, Tensor]:
        """Fetch the examples of clients `ids`: the buffer, and each client's rows in it [C, widest]."""
        sizes = [self.sizes[i] for i in listed]
        firsts = torch.tensor([0, *sizes]).cumsum(0)[:-1].tolist()
        total = self._fetch([(self._start[i], self._start[i + 1]) for i in listed])
        first, size = on_device([firsts, sizes], ids.device)[:, :, None]  # [C, 1] each
        inside = torch.arange(max(1, *sizes), device=ids.device).minimum(size - 1)
        return self._buffer, (first + inside).clamp(0, max(0, total - 1))  # a client may have no examples

    def pieces(self, data: Examples, most: int) -> Iterator[tuple[Examples, Tensor]]:
        """All clients' examples, client after client, at most `most` at a time: a data set and rows in it."""
        most = min(most, self._capacity or most)
        for first in range(0, len(self.examples), most):
            count = self._fetch([(first, min(first + most, len(self.examples)))])
            yield self._buffer, torch.arange(count, device=self._device)

    def prefetch(self, listed: list[int]) -> None:
        """Begin to read the examples of clients that train next from disk."""
        for first, last in _merged([(self._start[i], self._start[i + 1]) for i in listed]):
            for own in self._backings:
                own.prefetch(first, last)

    def _fetch(self, ranges: list[tuple[int, int]]) -> int:
        """Copy ranges of the examples into the buffer, one after another; the number of examples."""
        total = sum(last - first for first, last in ranges)
        self._grow(max(1, total))
        if self._copy_stream is None:
            self._copy(ranges, self._buffer)
            return total
        now = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._copy_stream):  # it has waited until the second buffer was copied
            self._copy(ranges, self._next_buffer)
        now.wait_stream(self._copy_stream)
        for buffer, ahead in zip(self._buffer, self._next_buffer):
            buffer[:total].copy_(ahead[:total])
        self._copy_stream.wait_stream(now)
        return total

    def _copy(self, ranges: list[tuple[int, int]], into: Examples) -> None:
        """Copy ranges of the examples, one after another."""
        place = 0
        for first, last in _merged(ranges):
            for own, buffer in zip(self._backings, into):
                buffer[place : place + last - first].copy_(own.rows[first:last], non_blocking=True)
            place += last - first


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge adjacent ranges, for fewer copies."""
    found: list[tuple[int, int]] = []
    for first, last in ranges:
        if found and found[-1][1] == first:
            found[-1] = (found[-1][0], last)
        elif first < last:
            found.append((first, last))
    return found


def offload(
    data: Examples, shards: Shards, device: torch.device, place: Place, capacity: int
) -> tuple[Examples, Shards]:
    """Examples and shards with the examples at `place`; the first and last few stay on the device, for trials."""
    if place == "device":
        return data, shards
    few = Examples(*(torch.cat((values[:4], values[-4:])).to(device) for values in data))
    return few, OffloadedShards(data, shards, device, place, capacity)


def place_examples(data: Examples, device: torch.device, place: Place) -> Examples:
    """Examples of the host, moved to `place`."""
    if place == "device" or (device.type == "cpu" and place == "host"):
        return Examples(*(values.to(device) for values in data))
    if place == "host":
        return Examples(*(values.pin_memory() for values in data))
    backings = [Backing(len(values), tuple(values.shape[1:]), values.dtype, place, device) for values in data]
    for own, values in zip(backings, data):
        own.reserve(len(values))
        own.rows.copy_(values)
    return Examples(*(own.rows for own in backings))
