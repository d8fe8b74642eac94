"""Random numbers of examples from one key each: the same in any company and order, on every device."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedloom.chance import absorb, absorb_here, uniform

_LEVELS = 1 << 16  # numbers in a table of a distribution: 16 of a word's 64 bits choose one


def words(keys: Tensor, purpose: int, count: int) -> Tensor:
    """`count` random 64-bit words [n, count] from the keys [n] of n examples; each purpose has its own."""
    if keys.device.type == "cpu":  # NumPy makes the same words in a third of the time
        own = absorb_here(keys.numpy().view(np.uint64), np.array([purpose], np.int64))
        return torch.from_numpy(absorb_here(own[:, None], np.arange(count, dtype=np.int64)).view(np.int64))
    return absorb(absorb(keys, purpose)[:, None], torch.arange(count, device=keys.device))


def uniforms(keys: Tensor, purpose: int, count: int) -> Tensor:
    """`count` numbers in [0, 1) for every key [n, count]."""
    return uniform(words(keys, purpose, count))


def below(keys: Tensor, purpose: int, limits: tuple[int, ...]) -> Tensor:
    """A whole number from 0 to `limit - 1` for every key and limit [n, limits]."""
    drawn = [column * limit for column, limit in zip(uniforms(keys, purpose, len(limits)).unbind(1), limits)]
    return torch.stack(drawn, 1).long()  # limit < 2**24: the largest product, limit * (1 - 2**-24), is below the limit


def looked_up(keys: Tensor, purpose: int, count: int, table: Tensor) -> Tensor:
    """`count` numbers of a table for every key [n, count]: four from each word, which is quick and exact everywhere."""
    if not len(keys) or not count:
        return table.new_empty(len(keys), count)
    index = words(keys, purpose, -(-count // 4)).view(torch.int16).int() + _LEVELS // 2
    return table.index_select(0, index.view(-1)).view(index.shape)[:, :count]


@lru_cache(maxsize=16)
def normal_table(std: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """65536 equally likely numbers of a normal distribution, scaled to exactly this deviation; the farthest is 4.3."""
    from scipy.special import ndtri  # imported here, since it loads slowly

    values = ndtri((np.arange(_LEVELS) + 0.5) / _LEVELS)
    return torch.tensor(values * (std / values.std())).to(device, dtype)


@lru_cache(maxsize=16)
def beta_table(alpha: float, device: torch.device) -> Tensor:
    """65536 equally likely numbers of the distribution Beta(alpha, alpha), in 24 bits, so that 1 - x is exact."""
    from scipy.special import betaincinv

    values = betaincinv(alpha, alpha, (np.arange(_LEVELS) + 0.5) / _LEVELS)
    return torch.tensor(np.rint(values * (1 << 24)) / (1 << 24), dtype=torch.float32, device=device)
