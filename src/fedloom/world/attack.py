"""What if some clients lie? A share of the fleet sends something else than it learnt, or learns something else."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.types import Reply, State, Task, column
from fedloom.engine.protocol import Engine
from fedloom.errors import BadExperiment


@dataclass(frozen=True)
class Attack(ABC):  # noqa: B024  an attack on data and one on replies each replace one of two calls
    """`attackers` of the fleet, the same all the time, and an update `scale` times as long as an honest one.

    What a local rule sends beside the weights, and reports, are left as they are.
    """

    attackers: float = 0.2
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.attackers <= 1:
            raise BadExperiment(f"attackers (share of the fleet) is {self.attackers}; it lies between 0 and 1.")

    def who(self, clients: int, chance: Chance) -> Tensor:
        """Who of the fleet attacks [N]: the share, rounded to whole clients."""
        chosen = chance._replace(round=0).choose("attackers", round(self.attackers * clients), clients)
        return torch.zeros(clients, dtype=torch.bool, device=chance.device).index_fill(0, chosen, True)

    def labels(self, labels: Tensor, classes: int) -> Tensor:
        """What attackers take their labels for."""
        return labels

    def change(self, change: Tensor, ids: Tensor, chance: Chance) -> Tensor:
        """What they send in place of their update [C, P]."""
        return self.scale * change


@dataclass(frozen=True)
class SignFlip(Attack):
    """Updates that point the other way; `scale` times as long."""

    scale: float = 5.0

    def change(self, change: Tensor, ids: Tensor, chance: Chance) -> Tensor:
        """Up the loss instead of down."""
        return -self.scale * change


@dataclass(frozen=True)
class Scaling(Attack):
    """Updates `scale` times as long."""

    scale: float = 100.0


@dataclass(frozen=True)
class Noise(Attack):
    """Normal noise in place of an update, `scale` times as long as the update was."""

    scale: float = 100.0

    def change(self, change: Tensor, ids: Tensor, chance: Chance) -> Tensor:
        """Drawn anew for each client and round."""
        draw = chance.normal("attack", ids[:, None], torch.arange(change.shape[1], device=ids.device)).to(change.dtype)
        size = torch.linalg.vector_norm(change, dim=1) / torch.linalg.vector_norm(draw, dim=1)
        return self.scale * column(size, draw) * draw


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Training on wrong labels, class c as class `classes - 1 - c`; the update is `scale` times as long."""

    scale: float = 5.0

    def labels(self, labels: Tensor, classes: int) -> Tensor:
        """The first class for the last and so on."""
        return classes - 1 - labels


class Attacked:
    """An engine some of whose clients attack; `who` [N] says which."""

    def __init__(self, engine: Engine, attack: Attack, who: Tensor) -> None:
        self.engine, self.attack, self.who = engine, attack, who

    def train(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """Replies of attackers are changed; which part of the model they send is not."""
        reply = self.engine.train(ids, task, chance)
        change = reply.params - task.model
        if reply.mask is not None:
            change = torch.where(reply.mask, change, 0)  # the rest does not travel, and is no measure of anything
        false = task.model + self.attack.change(change, reply.ids, chance)
        return reply._replace(params=torch.where(column(self.who[reply.ids], false), false, reply.params))

    def personal(self, model: Tensor) -> Tensor | None:
        """As the engine."""
        return self.engine.personal(model)

    def save(self) -> State:
        """As the engine."""
        return self.engine.save()

    def load(self, state: State) -> None:
        """As the engine."""
        self.engine.load(state)

    def describe(self) -> dict[str, Any]:
        """As the engine."""
        return self.engine.describe()
