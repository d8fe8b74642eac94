"""End times of transfers that share one link, exact from event to event."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]


def finish_times(start: Tensor, bits: Tensor, rate: Tensor, total: float) -> Tensor:
    """The second at which each transfer ends [C], begun at `start`, at its own `rate` or its fair part of `total`.

    Transfers that could use more than an equal part share equally what the slower ones leave (max-min fairness). Rates
    change only when a transfer begins or ends, so that 2 C steps are exact.
    """
    begin, left, own = (value.detach().cpu().double().numpy() for value in (start, bits, rate))
    ends, left = np.where(left > 0, np.inf, begin), left.copy()
    now, waiting = 0.0, np.sort(begin)
    for _ in range(2 * len(begin)):
        active = (begin <= now) & (ends == np.inf)
        coming = waiting[np.searchsorted(waiting, now, side="right") :]
        following = coming[0] if len(coming) else np.inf
        if not active.any():
            if following == np.inf:
                break
            now = following
            continue
        speed = fair(own[active], total)
        until = left[active] / speed
        step = min(float(until.min()), following - now)
        left[active] -= step * speed
        done = np.flatnonzero(active)[until <= step]
        now = now + step if len(done) else following
        ends[done] = now
    return torch.from_numpy(ends).to(start.device)


def fair(own: Floats, total: float) -> Floats:
    """Rates under a total: the lesser of the own rate and a level that fills the total; all own rates if they fit."""
    order = np.sort(own)
    before = np.concatenate(([0.0], np.cumsum(order)[:-1]))
    levels = (total - before) / np.arange(len(order), 0, -1)  # the level if all slower transfers have their own rates
    level = levels[np.argmax(order > levels)] if bool((order > levels).any()) else np.inf
    return np.minimum(own, level)
