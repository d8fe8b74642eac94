"""Local: the exits that a client has are trained together, and teach each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import exp

import torch
from torch import Tensor

from fedloom.core.goal import Loss
from fedloom.core.rule import LocalRule, Objective, Traits
from fedloom.core.stages import depth_of, losses_of
from fedloom.core.types import Setting, State, Task
from fedloom.errors import BadExperiment

SMALL = 1e-7  # added to a teacher's probabilities, as published


@dataclass(frozen=True)
class Exits(LocalRule):
    """The sum of the losses of a client's exits; with `distil` each also learns from what the others say.

    What it learns from them weighs `exp(-5 (1 - t / ramp)^2)` in round t, from 0, and 1 from `ramp` on.
    """

    distil: bool = True
    ramp: int = 300

    def __post_init__(self) -> None:
        if self.ramp < 1:
            raise BadExperiment(f"ramp is {self.ramp} rounds; expected at least 1.")

    @property
    def traits(self) -> Traits:
        """Clients minimise an objective of the rule's own."""
        return Traits(corrects=True, aims=True)

    def brief(self, memory: State, setting: Setting, ids: Tensor) -> State:
        """One place for every stage [C, D]; what it holds says nothing, and does not travel."""
        return {"stages": torch.zeros(1, len(setting.stages), dtype=torch.int32).to(ids.device).expand(len(ids), -1)}

    def objective(self, task: Task, loss: Loss) -> Objective | None:
        """The exits' losses, and what they learn from each other."""
        stages = task.extras["stages"].shape[1]
        if stages == 0:
            return None
        weight = self.weight(task.round) if self.distil else 0.0
        return Objective(partial(joint_loss, loss, weight), (depth_of(task.share, stages),))

    def weight(self, number: int) -> float:
        """The weight of what exits learn from each other in a round, counted from 1."""
        return exp(-5 * (1 - min(number - 1, self.ramp) / self.ramp) ** 2)


def joint_loss(loss: Loss, taught: float, outputs: Tensor, targets: Tensor, weight: Tensor, depth: Tensor) -> Tensor:
    """One client's loss []: outputs [B, D, ...], targets [B, ...], weight [B], and the number of exits that count."""
    place = torch.arange(outputs.shape[1], device=outputs.device)
    counts = place < depth
    each = (weight[:, None] * losses_of(loss, outputs, targets)).sum(0)
    total = torch.where(counts, each, 0).sum()
    if taught == 0:
        return total
    pairs = counts[:, None] & counts & (place[:, None] != place)
    return total + taught / (depth - 1).clamp(min=1) * torch.where(pairs, divergence(outputs, weight), 0).sum()


def divergence(outputs: Tensor, weight: Tensor) -> Tensor:
    """The mean divergence of each exit from each other one [D, D]: row i learns from column j, which does not move."""
    said, right = outputs.log_softmax(-1), outputs.detach().softmax(-1) + SMALL
    entropy = (right * right.log()).sum(-1)  # [B, D]
    crossed = torch.einsum("bik,bjk->bij", said, right)
    return (weight[:, None, None] * (entropy[:, None] - crossed)).sum(0)
