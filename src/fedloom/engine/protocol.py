"""The protocol of engines, which train a cohort for the server: in this process, in several, or over a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.types import Reply, State, Task

if TYPE_CHECKING:
    from fedloom.core.costs import Bytes
    from fedloom.core.flight import Asked, Flight, Journey
    from fedloom.core.pace import Pace


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

    def settle(self, ids: list[int]) -> None:
        """Let the states that these clients have after training count from now on.

        Without a barrier between rounds, clients train when their replies are needed, and their new states are kept
        aside until their tasks have ended. With one, states count at once, and there is nothing to settle.
        """

    def save(self) -> State:
        """All that changes from round to round, by name; views, to be copied before the next round."""

    def load(self, state: State) -> None:
        """Put back what `save` gave, before the next round."""

    def describe(self) -> dict[str, Any]:
        """What the engine does and why, as plain values for the run folder and `fedloom run --explain`."""


class Timed(Protocol):
    """Clients that are in flight while others begin, for rounds without a barrier.

    In a simulated world what becomes of a task is known when it is asked, so time runs ahead of training. On a network
    it is known when the reply comes.
    """

    @property
    def foresees(self) -> bool:
        """Whether what becomes of a task is known when it is asked, so that clients are trained when it is needed."""

    @property
    def ahead(self) -> bool:
        """Whether tasks can be made before it is known who of their clients is asked, and when."""

    @property
    def idle(self) -> float:
        """Seconds until the next step if nobody could be asked."""

    def reachable(self, free: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which of the free clients [N] can be asked now."""

    def foresee(self, ids: Tensor, task: Task, chance: Chance, now: float, reply: Reply | None = None) -> Journey:
        """What will become of clients `ids` [C] that are asked at the second `now`.

        `reply` is what they will send, a row for each, where its size follows only from training.
        """

    def begin(self, tasks: Sequence[Asked]) -> None:
        """Send these tasks, which are in the flight already."""

    def wait(self, flight: Flight, pace: Pace, alarm: float) -> bool:
        """Wait until something happens, or the second `alarm` has come; False: nothing will happen any more."""

    def train_asked(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """The replies of clients that got their task, whatever becomes of them on the way; states are set aside."""

    def settle(self, ids: list[int]) -> None:
        """As `Engine.settle`."""

    def unanswered(self, ids: Tensor, task: Task) -> Reply:
        """Replies of clients none of which has trained: all of them hold the model."""

    def delivered(self, reply: Reply, pieces: Tensor | None) -> Reply:
        """A step's replies as they came through: without lost pieces, and with what was refused on the way."""

    def costs_of(self, tasks: Sequence[Asked], device: torch.device) -> tuple[Bytes, Bytes, State]:
        """Sizes of the tasks and their replies [C each], and columns of what else they took [C each]."""
