"""The protocol of engines, which train a cohort for the server: in this process, in several, or over a network."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.types import Reply, State, Task


class Engine(Protocol):
    """Trains clients and keeps their states between rounds.

    `Loop` and `Local` train in this process, `Distributed` and Flower's `Network` elsewhere; `Attacked`, `Wire` and
    `Simulated` wrap another engine and change what passes through. A run needs no more of an engine than this.
    """

    def train(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """The replies of clients `ids` [C]; the caller may overwrite the rows of parameters in them.

        `ids` lie on the host where only chance decided who takes part. `Reply.costs` carries what the round cost,
        where the engine measures or simulates it.
        """

    def personal(self, model: Tensor) -> Tensor | None:
        """The score of every client's own model on its own test examples [N], NaN for a client without any.

        Clients without a model of their own are served by the global `model` [P]. None: no client has test examples.
        """

    def save(self) -> State:
        """All that changes from round to round, by name; views, to be copied before the next round."""

    def load(self, state: State) -> None:
        """Put back what `save` gave, before the next round."""

    def describe(self) -> dict[str, Any]:
        """What the engine does and why, as plain values for the run folder and `fedloom run --explain`."""
