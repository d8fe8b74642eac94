"""Who takes part? Those who are fast enough, by a budget of uploads or by a deadline."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.clock import Seconds, full_seconds
from fedloom.core.devices import known_devices
from fedloom.core.part import Select
from fedloom.core.types import Cohort, Setting, State
from fedloom.core.work import Work
from fedloom.errors import BadExperiment


def within_budget(budget: float, size: int) -> int:
    """How many whole models a budget pays for, as a part of those of all `size` clients; at least 1."""
    return max(1, int(budget * size + 1e-9))  # 0.29 * 100 is a hair below 29


def check_budget(budget: float) -> None:
    """Refuse what is not a part."""
    if not 0 < budget <= 1:
        raise BadExperiment(f"budget (part of all clients' uploads) is {budget}; it lies above 0 and at most at 1.")


@dataclass(frozen=True)
class FastestWithinBudget(Select):
    """The clients with the shortest round of the whole model, as many as `budget * sum U_n` pays for.

    All models are equally large here. With static rates the same clients always lose. `work` must be the method's.
    """

    budget: float = 0.6
    work: Work = Work()

    def __post_init__(self) -> None:
        check_budget(self.budget)

    def init(self, setting: Setting, model: Tensor) -> State:
        """Nothing to remember, but the devices must be known."""
        known_devices(setting.fleet.devices, "FastestWithinBudget")
        return {}

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """By download, compute and upload; the first win a tie."""
        seconds = this_round(setting, self.work, chance, "FastestWithinBudget").total
        ids = seconds.argsort(stable=True)[: within_budget(self.budget, len(seconds))].sort().values
        return Cohort(ids, torch.ones_like(ids, dtype=torch.bool)), memory


@dataclass(frozen=True)
class WithinDeadline(Select):
    """Of `count` random clients, as many as can upload one after the other before the deadline, greedily chosen.

    The model is broadcast at the rate of the slowest chosen; clients compute while others upload. If nobody makes it,
    the fastest is tried. `work` must be the method's.
    """

    deadline: float = 180.0  # seconds
    count: int = 10
    work: Work = Work()

    def __post_init__(self) -> None:
        if not self.deadline > 0:
            raise BadExperiment(f"deadline (of a round) is {self.deadline} seconds; it must be above 0.")
        if self.count < 1:
            raise BadExperiment(f"count (of candidates a round) is {self.count}; at least 1 must be asked.")

    def init(self, setting: Setting, model: Tensor) -> State:
        """Nothing to remember, but the devices must be known."""
        known_devices(setting.fleet.devices, "WithinDeadline")
        return {}

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """Ask at random, then choose."""
        size = setting.fleet.size
        asked = chance.choose("select", min(self.count, size), size)
        down, compute, up = this_round(setting, self.work, chance, "WithinDeadline")
        ids = asked[in_sequence(Seconds(down[asked], compute[asked], up[asked]), self.deadline)]
        return Cohort(ids, torch.ones_like(ids, dtype=torch.bool)), memory


def in_sequence(seconds: Seconds, deadline: float) -> Tensor:
    """FedCS's greedy choice among candidates, as rising places.

    Again and again whoever lengthens the round least is added if the round still fits, and dropped if not.
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
    """What every client would take for the whole model in this round [N each]."""
    return full_seconds(setting, known_devices(setting.fleet.devices, who).now(chance), work)
