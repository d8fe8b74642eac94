"""FedDD's linear programme, which splits a budget of bytes among clients, and its exact solution.

Over shares x in [least, 1], one for each of C clients: minimise `s - sum_n worth_n x_n`, where the slowest takes s
seconds, `fixed_n + full_n x_n <= s`, and all together send a part of all their models, `sum_n size_n x_n = budget *
sum_n size_n`. The paper writes it in dropout rates, `D = 1 - x`, and `worth_n = delta * re_n`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.accel.capture import Captured

BITS = 64  # halvings of an interval, down to double precision
AT_ONCE, ENOUGH = 11, 55  # on a GPU: halvings per step, by trying all ends of a finer division, and halvings in all
ROOM = 2**19  # numbers tried together on a GPU; with many clients fewer halvings per step
ROUNDING = 1e-12  # a share that is this little below 1 becomes 1


class Fleet(NamedTuple):
    """What the programme reads of the clients [C each], in double precision."""

    size: Tensor  # of each model, in any unit
    fixed: Tensor  # seconds that a client takes whatever its share
    full: Tensor  # seconds that its whole model takes down and up; above 0
    worth: Tensor  # seconds that sending the whole model is worth; at least 0

    def slowest(self, share: Tensor) -> Tensor:
        """Seconds of the round []."""
        return (self.fixed + self.full * share).max()

    def objective(self, share: Tensor) -> Tensor:
        """The objective [], as the paper writes it: seconds plus the worth of what is dropped."""
        return self.slowest(share) + (self.worth * (1 - share)).sum()


def by_filling(fleet: Fleet, budget: float, least: float) -> Tensor:
    """The best shares [C]; on an accelerator the host does not wait, and the whole search is one launch.

    In a round of s seconds a client can send at most `(s - fixed) / full`. Beyond the least share of every client the
    budget goes first to the clients whose numbers are worth most, up to that bound: a continuous knapsack. The
    objective is convex in s, piecewise linear, and halving finds the corner at which it begins to rise.
    """
    return _found(tuple(fleet), budget, least)[0]


def _fill(columns: tuple[Tensor, ...], budget: float, least: float) -> tuple[Tensor, ...]:
    """The best shares [C]."""
    fleet = Fleet(*columns)
    order = (fleet.fixed + fleet.full).argsort(stable=True)  # of equal worth the quicker client first
    value, then = (fleet.worth / fleet.size)[order].sort(descending=True, stable=True)
    order = order[then]
    size, fixed, full, _ = (column[order] for column in fleet)
    room = (budget - least) * size.sum()  # left when every client sends the least
    gain = size / full  # how much more a client can send per second
    begin, end, nothing, whole = fixed + least * full, fixed + full, torch.zeros_like(size), (1 - least) * size

    def filled(seconds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The most each can send beyond the least, its cumulative sum, and who can send more [n, C]; seconds [n, 1]."""
        most = ((seconds - begin) * gain).clamp(nothing, whole)  # [n, C]
        return most, most.cumsum(1), seconds < end

    low, high = fleet.slowest(torch.full_like(size, least)), fleet.slowest(torch.ones_like(size))
    bits = max(1, min(AT_ONCE, (ROOM // len(size)).bit_length() - 1)) if size.is_cuda else 1
    parts = torch.arange(1, 2**bits, device=size.device, dtype=size.dtype) / 2**bits
    pair = torch.arange(2, device=size.device)
    for _ in range(-(-(ENOUGH if size.is_cuda else BITS) // bits)):
        between = torch.lerp(low, high, parts)
        _, sums, grows = filled(between[:, None])
        before = sums < room  # clients filled to their bounds; the next has the rest
        last = value[before.sum(1, keepdim=True).clamp(max=len(value) - 1)]
        pays = ((value - last) * gain * (before & grows)).sum(1) > 1  # a second more moves budget to better clients
        longer = ((sums[:, -1] < room) | pays).sum(0, keepdim=True)  # up to there the objective falls
        low, high = torch.cat([low[None], between, high[None]])[longer + pair]
    most, sums, _ = (found[0] for found in filled(high[None, None]))
    share = least + torch.minimum(most, (room - (sums - most)).clamp(min=0)) / size
    share = torch.where(share > 1 - ROUNDING, 1, share)
    return (torch.empty_like(share).scatter_(0, order, share),)


_found = Captured(_fill)


def by_linear_programme(fleet: Fleet, budget: float, least: float) -> Tensor:
    """The best shares [C] by a general solver (HiGHS) on the host: slower, and perhaps other shares of equal value."""
    import numpy as np
    from scipy.optimize import linprog
    from scipy.sparse import diags_array, hstack

    size, fixed, full, worth = (column.cpu().numpy() for column in fleet)
    unit = float(fleet.slowest(torch.ones_like(fleet.size)))  # the solver needs seconds and sizes near 1
    count, weight = len(size), size / size.sum()
    found = linprog(
        np.append(-worth / unit, 1.0),
        A_ub=hstack([diags_array(full / unit), np.full((count, 1), -1.0)], format="csr"),
        b_ub=-fixed / unit,
        A_eq=np.append(weight, 0.0)[None],
        b_eq=[budget],
        bounds=[*[(least, 1)] * count, (None, None)],
        method="highs",
    )
    assert found.status == 0, found.message
    return torch.from_numpy(found.x[:-1]).to(fleet.size)
