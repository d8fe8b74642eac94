"""A simulated world in which clients are in flight while others begin: virtual time runs ahead of training."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.costs import MEASURED, Bytes
from fedloom.core.flight import Asked, Flight, Journey, facts_of
from fedloom.core.pace import Pace
from fedloom.core.types import Reply, State, Task
from fedloom.world.simulated import IDLE, Simulated


class VirtualTime:
    """The clients of a simulated world without a barrier between rounds."""

    def __init__(self, simulated: Simulated) -> None:
        self.simulated = simulated

    @property
    def foresees(self) -> bool:
        """What becomes of a task follows from seed and round."""
        return True

    @property
    def ahead(self) -> bool:
        """Unless what a task takes depends on the second at which it is asked."""
        return self.simulated.trace is None

    @property
    def idle(self) -> float:
        """As between rounds."""
        return IDLE

    def reachable(self, free: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """All: whether a client is there is seen when it is asked."""
        return free

    def foresee(self, ids: Tensor, task: Task, chance: Chance, now: float, reply: Reply | None = None) -> Journey:
        """What will become of clients that are asked now."""
        return self.simulated.foresee(ids.to(task.model.device, non_blocking=True), task, chance, now, reply)

    def begin(self, tasks: Sequence[Asked]) -> None:
        """Nothing: clients are trained when it is needed."""

    def wait(self, flight: Flight, pace: Pace, alarm: float) -> bool:
        """Go on to the next second at which something happens."""
        following = min(flight.next_event(), alarm)
        if following == inf:
            return False
        flight.advance(max(flight.now, following))
        flight.happen(pace)
        return True

    def train_asked(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """Train, with the codec on the way; nothing is lost here."""
        return self.simulated.engine.train(ids, task, chance)

    def settle(self, ids: list[int]) -> None:
        """The states of clients whose tasks have ended."""
        self.simulated.settle(ids)

    def unanswered(self, ids: Tensor, task: Task) -> Reply:
        """Replies of clients none of which has trained."""
        return self.simulated.unanswered(ids.to(task.model.device, non_blocking=True), task)

    def delivered(self, reply: Reply, pieces: Tensor | None) -> Reply:
        """The replies without the pieces that were lost."""
        return self.simulated.in_pieces(reply, pieces)

    def costs_of(self, tasks: Sequence[Asked], device: torch.device) -> tuple[Bytes, Bytes, State]:
        """As they were foreseen."""
        facts, first = facts_of(tasks, device), len(MEASURED)
        columns = dict(zip(MEASURED, facts.unbind(1)))
        columns = {name: value.long() if name.startswith("bytes") else value for name, value in columns.items()}
        down, up = (Bytes(*facts[:, a : a + 3].long().unbind(1)) for a in (first, first + 3))
        return down, up, columns
