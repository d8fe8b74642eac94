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
from fedloom.neurons.leading import LeadingNeurons
from fedloom.parts.select.counted import Counted


def within_budget(budget: float, order: Tensor, part: Tensor) -> int:
    """How many of the first clients of `order` may upload under a budget, a fraction of all uploads; at least 1.

    `part` [N]: the part of the model that each client has.
    """
    paid = part[order].cumsum(0) <= budget * part.sum() + 1e-9  # 0.29 * 100 is just below 29
    return max(1, int(paid.sum()))


def part_of(setting: Setting, models: LeadingNeurons | None) -> Tensor:
    """The part of the network's numbers that each client has [N]."""
    size, neurons = setting.fleet.size, setting.neurons
    ids = torch.arange(size, device=setting.fleet.examples.device)
    if models is None:
        return torch.ones(size, dtype=torch.float64, device=ids.device)
    return neurons.bytes(models.of(neurons, ids), each=1).double() / setting.layout.total


def check_budget(budget: float) -> None:
    """Refuse a budget outside (0, 1]."""
    if not 0 < budget <= 1:
        raise BadExperiment(f"budget (part of all clients' uploads) is {budget}; it lies above 0 and at most at 1.")


@dataclass(frozen=True)
class FastestWithinBudget(Select):
    """The clients with the shortest round of their model, as many as `budget * sum U_n` pays for.

    With constant link rates the same clients always lose.
    """

    budget: float = 0.6
    work: Work = Work()
    models: LeadingNeurons | None = None  # None: every client has the whole network

    def __post_init__(self) -> None:
        check_budget(self.budget)

    @property
    def networks(self) -> tuple[LeadingNeurons | None, ...]:
        """Who is fast, and who fits, depends on what each client has."""
        return (self.models,)

    @property
    def needs_devices(self) -> bool:
        """How fast clients are depends on them."""
        return True

    def init(self, setting: Setting, model: Tensor) -> State:
        """Check that devices are known; nothing is remembered."""
        known_devices(setting.fleet.devices, "FastestWithinBudget")
        return {}

    def for_work(self, work: Work) -> Self:
        """Compute seconds depend on the clients' work."""
        return replace(self, work=work)

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """Rank clients by download, compute and upload; of equals the lowest id wins."""
        ids = self._fastest(setting, chance).sort().values
        return Cohort(ids, torch.ones_like(ids, dtype=torch.bool)), memory

    def next(self, memory: State, setting: Setting, chance: Chance, free: Tensor, count: int) -> tuple[Tensor, State]:
        """Those of a round's cohort that are free, fastest first."""
        order = self._fastest(setting, chance).cpu()
        return order[free.cpu()[order]][:count], memory

    def _fastest(self, setting: Setting, chance: Chance) -> Tensor:
        """The clients that the budget pays for, fastest first."""
        part = part_of(setting, self.models)
        seconds = this_round(setting, self.work, chance, "FastestWithinBudget", part).total
        order = seconds.argsort(stable=True)
        return order[: within_budget(self.budget, order, part)]


@dataclass(frozen=True)
class WithinDeadline(Counted):
    """Of `count` random clients, as many as can upload one after the other before the deadline, greedily chosen.

    The model is broadcast at the rate of the slowest client chosen; clients compute while others upload. If no client
    meets the deadline, the fastest is chosen.
    """

    deadline: float = 180.0  # seconds
    count: int = 10
    work: Work = Work()
    models: LeadingNeurons | None = None  # None: every client has the whole network

    def __post_init__(self) -> None:
        if not self.deadline > 0:
            raise BadExperiment(f"deadline (of a round) is {self.deadline} seconds; it must be above 0.")
        super().__post_init__()

    @property
    def alone(self) -> bool:
        """Clients upload one after the other, so that each decides whether another still fits."""
        return False

    @property
    def networks(self) -> tuple[LeadingNeurons | None, ...]:
        """Who is fast, and who fits, depends on what each client has."""
        return (self.models,)

    @property
    def needs_devices(self) -> bool:
        """How fast clients are depends on them."""
        return True

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
        down, compute, up = this_round(setting, self.work, chance, "WithinDeadline", part_of(setting, self.models))
        ids = asked[in_sequence(Seconds(down[asked], compute[asked], up[asked]), self.deadline)]
        return Cohort(ids, torch.ones_like(ids, dtype=torch.bool)), memory

    def next(self, memory: State, setting: Setting, chance: Chance, free: Tensor, count: int) -> tuple[Tensor, State]:
        """Of the first `count` free candidates in the order of a round's, those that meet the deadline together."""
        order = chance.on_host().order("select", len(free), free.cpu())
        asked = order[: min(self.count, count)].sort().values.to(setting.fleet.examples.device)
        if not len(asked):
            return asked.cpu(), memory
        down, compute, up = this_round(setting, self.work, chance, "WithinDeadline", part_of(setting, self.models))
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


def this_round(setting: Setting, work: Work, chance: Chance, who: str, part: Tensor | None = None) -> Seconds:
    """Seconds that every client would take for its `part` of the model in this round [N each]; None: the whole one."""
    return full_seconds(setting, known_devices(setting.fleet.devices, who).now(chance), work, part=part)
