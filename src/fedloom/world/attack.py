"""Attacks: a share of the fleet sends something other than what it learnt, or learns something else."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.goal import Goal
from fedloom.core.types import Reply, State, Task, column
from fedloom.engine.protocol import Engine
from fedloom.errors import BadExperiment


@dataclass(frozen=True)
class Attack(ABC):  # noqa: B024  an attack on data and one on replies each replace one of two calls
    """A fixed share `attackers` of the fleet, with updates `scale` times as long as honest ones.

    Reports, and what a local rule sends in addition to the weights, stay as they are.
    """

    attackers: float = 0.2
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.attackers <= 1:
            raise BadExperiment(f"attackers (share of the fleet) is {self.attackers}; it lies between 0 and 1.")

    def who(self, clients: int, chance: Chance) -> Tensor:
        """The attackers in the fleet [N]: the share, rounded to whole clients."""
        chosen = chance._replace(round=0).choose("attackers", round(self.attackers * clients), clients)
        return torch.zeros(clients, dtype=torch.bool, device=chance.device).index_fill(0, chosen, True)

    def targets(self, y: Tensor, goal: Goal, outputs: int) -> Tensor:
        """The targets that attackers train on; a network's answer is `outputs` wide."""
        return y

    def change(self, change: Tensor, ids: Tensor, chance: Chance) -> Tensor:
        """The updates [C, P] that attackers send in place of `change`."""
        return self.scale * change


@dataclass(frozen=True)
class SignFlip(Attack):
    """Updates in the opposite direction, `scale` times as long."""

    scale: float = 5.0

    def change(self, change: Tensor, ids: Tensor, chance: Chance) -> Tensor:
        """The opposite update, which increases the loss."""
        return -self.scale * change


@dataclass(frozen=True)
class Scaling(Attack):
    """Updates `scale` times as long."""

    scale: float = 100.0


@dataclass(frozen=True)
class Noise(Attack):
    """Normal noise in place of an update, `scale` times as long as the update."""

    scale: float = 100.0

    def change(self, change: Tensor, ids: Tensor, chance: Chance) -> Tensor:
        """Noise, drawn anew for each client and round."""
        draw = chance.normal("attack", ids[:, None], torch.arange(change.shape[1], device=ids.device)).to(change.dtype)
        size = torch.linalg.vector_norm(change, dim=1) / torch.linalg.vector_norm(draw, dim=1)
        return self.scale * column(size, draw) * draw


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Training on wrong targets, class c of K as class `K - 1 - c`; the update is `scale` times as long."""

    scale: float = 5.0

    def targets(self, y: Tensor, goal: Goal, outputs: int) -> Tensor:
        """The last class in place of the first, and so on; places that count for nothing stay so."""
        if y.is_floating_point():
            raise BadExperiment(
                f"attack is 'label-flip', and targets of goal '{goal.name}' are numbers, which have no opposite; "
                "choose sign-flip, scaling or noise."
            )
        last = outputs - 1 if goal.answer == "scores" else 1
        return torch.where(y == goal.targets.ignore, y, last - y) if goal.targets.ignore is not None else last - y


class Attacked:
    """An engine of whose clients those in `who` [N] attack."""

    def __init__(self, engine: Engine, attack: Attack, who: Tensor) -> None:
        self.engine, self.attack, self.who = engine, attack, who

    def train(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """Train, and replace the updates of attackers; which numbers they send does not change."""
        reply = self.engine.train(ids, task, chance)
        change = reply.params - task.model
        if reply.mask is not None:
            change = torch.where(reply.mask, change, 0)  # the rest is not sent and must not count in the norm
        false = task.model + self.attack.change(change, reply.ids, chance)
        return reply._replace(params=torch.where(column(self.who[reply.ids], false), false, reply.params))

    def personal(self, model: Tensor) -> Tensor | None:
        """As the engine."""
        return self.engine.personal(model)

    def settle(self, ids: list[int]) -> None:
        """As the engine."""
        self.engine.settle(ids)

    def save(self) -> State:
        """As the engine."""
        return self.engine.save()

    def load(self, state: State) -> None:
        """As the engine."""
        self.engine.load(state)

    def describe(self) -> dict[str, Any]:
        """As the engine."""
        return self.engine.describe()
