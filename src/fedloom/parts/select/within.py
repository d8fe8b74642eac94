"""Select: clients that are fast enough, by a budget of uploads or by a deadline."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.clock import Seconds, full_seconds
from fedloom.core.devices import known_devices
from fedloom.core.part import Select
from fedloom.core.types import Cohort, Setting, State
from fedloom.core.work import Work
from fedloom.errors import BadExperiment
from fedloom.parts.select.counted import Counted


def within_budget(budget: float, size: int) -> int:
    """How many of `size` clients may upload whole models under a budget, a fraction of all uploads; at least 1."""
    return max(1, int(budget * size + 1e-9))  # 0.29 * 100 is just below 29


def check_budget(budget: float) -> None:
    """Refuse a budget outside (0, 1]."""
    if not 0 < budget <= 1:
        raise BadExperiment(f"budget (part of all clients' uploads) is {budget}; it lies above 0 and at most at 1.")


@dataclass(frozen=True)
class FastestWithinBudget(Select):
    """The clients with the shortest round of the whole model, as many as `budget * sum U_n` pays for.

    All models have equal size here. With constant link rates the same clients always lose.
    """

    budget: float = 0.6
    work: Work = Work()

    def __post_init__(self) -> None:
        check_budget(self.budget)

    def init(self, setting: Setting, model: Tensor) -> State:
        """Check that devices are known; nothing is remembered."""
        known_devices(setting.fleet.devices, "FastestWithinBudget")
        return {}

    def for_work(self, work: Work) -> Self:
        """Compute seconds depend on the clients' work."""
        return replace(self, work=work)

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """Rank clients by download, compute and upload; of equals the lowest id wins."""
        seconds = this_round(setting, self.work, chance, "FastestWithinBudget").total
        ids = seconds.argsort(stable=True)[: within_budget(self.budget, len(seconds))].sort().values
        return Cohort(ids, torch.ones_like(ids, dtype=torch.bool)), memory

    def next(self, memory: State, setting: Setting, chance: Chance, free: Tensor, count: int) -> tuple[Tensor, State]:
        """Those of a round's cohort that are free, fastest first."""
        seconds = this_round(setting, self.work, chance, "FastestWithinBudget").total
        order = seconds.argsort(stable=True)[: within_budget(self.budget, len(seconds))].cpu()
        return order[free.cpu()[order]][:count], memory


@dataclass(frozen=True)
class WithinDeadline(Counted):
    """Of `count` random clients, as many as can upload one after the other before the deadline, greedily chosen.

    The model is broadcast at the rate of the slowest client chosen; clients compute while others upload. If no client
    meets the deadline, the fastest is chosen.
    """

    deadline: float = 180.0  # seconds
    count: int = 10
    work: Work = Work()

    def __post_init__(self) -> None:
        if not self.deadline > 0:
            raise BadExperiment(f"deadline (of a round) is {self.deadline} seconds; it must be above 0.")
        super().__post_init__()

    @property
    def alone(self) -> bool:
        """Clients upload one after the other, so that each decides whether another still fits."""
        return False

    def init(self, setting: Setting, model: Tensor) -> State:
        """Check that devices are known; nothing is remembered."""
        known_devices(setting.fleet.devices, "WithinDeadline")
        return {}

    def for_work(self, work: Work) -> Self:
        """Compute seconds depend on the clients' work."""
        return replace(self, work=work)

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """Draw candidates at random, then choose greedily."""
        size = setting.fleet.size
        asked = chance.choose("select", min(self.count, size), size)
        down, compute, up = this_round(setting, self.work, chance, "WithinDeadline")
        ids = asked[in_sequence(Seconds(down[asked], compute[asked], up[asked]), self.deadline)]
        return Cohort(ids, torch.ones_like(ids, dtype=torch.bool)), memory

    def next(self, memory: State, setting: Setting, chance: Chance, free: Tensor, count: int) -> tuple[Tensor, State]:
        """Of the first `count` free candidates in the order of a round's, those that meet the deadline together."""
        order = chance.on_host().order("select", len(free), free.cpu())
        asked = order[: min(self.count, count)].sort().values.to(setting.fleet.examples.device)
        if not len(asked):
            return asked.cpu(), memory
        down, compute, up = this_round(setting, self.work, chance, "WithinDeadline")
        return asked[in_sequence(Seconds(down[asked], compute[asked], up[asked]), self.deadline)].cpu(), memory


def in_sequence(seconds: Seconds, deadline: float) -> Tensor:
    """Choose among candidates greedily, as FedCS does; returns their places in rising order.

    Repeatedly, the candidate that lengthens the round least is added if the round still fits, and dropped if not.
    """
    down, compute, up = seconds
    left = torch.ones_like(up, dtype=torch.bool)
    chosen = torch.zeros_like(left)
    spread = elapsed = up.new_zeros(())  # of the broadcast, and of computing and uploading after it
    for _ in range(len(up)):
        longer = (down - spread).clamp(min=0) + up + (compute - elapsed).clamp(min=0)
        best = longer.masked_fill(~left, torch.inf).argmin()
        left[best] = False
        wider, later = torch.maximum(spread, down[best]), torch.maximum(elapsed, compute[best]) + up[best]
        chosen[best] = fits = wider + later <= deadline
        spread, elapsed = torch.where(fits, wider, spread), torch.where(fits, later, elapsed)
    if not bool(chosen.any()):
        chosen[seconds.total.argmin()] = True
    return chosen.nonzero().flatten()


def this_round(setting: Setting, work: Work, chance: Chance, who: str) -> Seconds:
    """Seconds that every client would take for the whole model in this round [N each]."""
    return full_seconds(setting, known_devices(setting.fleet.devices, who).now(chance), work)
