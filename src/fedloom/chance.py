"""Random numbers as pure functions of (seed, purpose, round, client, index).

Nothing is drawn from a stream, so the numbers are the same on every device, in any chunking, under every engine and
after a resume, and no purpose can disturb another. Keys are mixed by 64-bit integer arithmetic that wraps around.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # the multipliers of SplitMix64
_ALL = (1 << 64) - 1

Words = NDArray[np.uint64]

_ONE, _GOLD, _LAST = np.uint64(1), np.uint64(_GOLDEN), np.uint64(31)  # made once, which saves time
_ROUNDS = ((np.uint64(30), np.uint64(_FIRST)), (np.uint64(27), np.uint64(_SECOND)))


def _signed(value: int) -> int:
    """An unsigned 64-bit number as the signed one of the same bits."""
    return value - (1 << 64) if value >> 63 else value


def _shift(x: Tensor, by: int) -> Tensor:
    """Shift right and fill with zeros; torch's own shift repeats the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _mix(x: Tensor) -> Tensor:
    """The finaliser of SplitMix64."""
    x = (x ^ _shift(x, 30)) * _signed(_FIRST)
    x = (x ^ _shift(x, 27)) * _signed(_SECOND)
    return x ^ _shift(x, 31)


def _mix_int(x: int) -> int:
    """`_mix` of one unsigned Python integer."""
    x = ((x ^ (x >> 30)) * _FIRST) & _ALL
    x = ((x ^ (x >> 27)) * _SECOND) & _ALL
    return x ^ (x >> 31)


def absorb(key: Tensor, part: Tensor | int) -> Tensor:
    """A new key that depends on `key` and `part`; shapes broadcast."""
    if isinstance(part, Tensor):
        part = part.to(torch.int64)  # narrower integers would narrow the key
    return _mix(key * _signed(_GOLDEN) + part + 1)


def absorb_here(key: Words, part: NDArray[np.int64]) -> Words:
    """`absorb` by NumPy, whose calls on few numbers take a third of the time; one of the two has at least one axis."""
    x = key * _GOLD + part.view(np.uint64)
    x += _ONE
    for by, times in _ROUNDS:
        x ^= x >> by
        x *= times
    x ^= x >> _LAST
    return x


def uniform(key: Tensor) -> Tensor:
    """Each key's number in [0, 1): 24 bits, exact in float32."""
    return _shift(key, 40).float() / (1 << 24)


def normal(key: Tensor) -> Tensor:
    """Each key's number of the standard normal distribution (float64); devices may differ in the last digit."""
    first = (_shift(key, 11).double() + 1) / (1 << 53)  # above 0, so that a number can be up to 8.5 deviations from 0
    second = _shift(absorb(key, 1), 11).double() / (1 << 53)
    return (-2 * first.log()).sqrt() * (2 * torch.pi * second).cos()


class Chance(NamedTuple):
    """The source of random numbers for one round."""

    seed: int
    round: int
    device: torch.device = torch.device("cpu")

    def key(self, purpose: str, *parts: Tensor | int) -> Tensor:
        """A 64-bit key for every combination of `parts` (broadcast)."""
        key = torch.full((), _signed(self._word(purpose)), dtype=torch.int64, device=self.device)
        for part in parts:
            key = absorb(key, part)
        return key

    def _word(self, purpose: str) -> int:
        """The number from which all keys of a purpose are derived."""
        word = int.from_bytes(blake2b(purpose.encode(), digest_size=8).digest(), "little")
        state = 0
        for known in (self.seed, word, self.round):
            state = _mix_int((state * _GOLDEN + known + 1) & _ALL)
        return state

    def on_host(self) -> Chance:
        """The same numbers on the host, where decisions can be read without waiting for a device."""
        return self._replace(device=torch.device("cpu"))

    def uniform(self, purpose: str, *parts: Tensor | int) -> Tensor:
        """A number in [0, 1) for every combination of `parts`."""
        return uniform(self.key(purpose, *parts))

    def normal(self, purpose: str, *parts: Tensor | int) -> Tensor:
        """A number of the standard normal distribution for every combination of `parts`."""
        return normal(self.key(purpose, *parts))

    def choose(self, purpose: str, count: int, total: int) -> Tensor:
        """`count` of `total`, without repetition, in rising order."""
        if self.device.type == "cpu":
            words = absorb_here(np.array([self._word(purpose)], np.uint64), np.arange(total))
            return torch.from_numpy(np.sort(words.view(np.int64).argpartition(max(0, count - 1))[:count]))
        keys = self.key(purpose, torch.arange(total, device=self.device))
        return torch.topk(keys, count, largest=False).indices.sort().values

    def order(self, purpose: str, total: int, among: Tensor) -> Tensor:
        """The places in 0 to `total` - 1 that are `among` [total], in the order in which `choose` prefers them."""
        words = absorb_here(np.array([self._word(purpose)], np.uint64), np.arange(total)).view(np.int64)
        left = np.flatnonzero(among.cpu().numpy())
        return torch.from_numpy(left[words[left].argsort(kind="stable")])
