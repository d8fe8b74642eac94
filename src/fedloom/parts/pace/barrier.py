"""Pace: a cohort is asked, and the step is made when nobody of it is awaited any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from fedloom.core.flight import Asked, Flight
from fedloom.core.pace import Pace
from fedloom.core.types import State


@dataclass(frozen=True)
class Barrier(Pace):
    """Synchronous rounds, which `play_round` plays: `select` decides how many clients are asked."""

    @property
    def barrier(self) -> bool:
        """Nobody is in flight between two rounds."""
        return True

    def wish(self, memory: State, flight: Flight, able: NDArray[np.bool_]) -> NoReturn:
        """Rounds ask through `select`."""
        raise NotImplementedError("rounds with a barrier are played by play_round")

    def due(self, memory: State, flight: Flight, quiet: bool) -> list[Asked] | None:
        """Rounds end with the engine's answer."""
        raise NotImplementedError("rounds with a barrier are played by play_round")
