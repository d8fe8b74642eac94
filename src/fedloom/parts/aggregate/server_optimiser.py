"""Server optimisers: the step that a model takes, given the change that an aggregate asks for.

All is number by number, over the T numbers that are trained; moments start at 0, or at `start`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from fedloom.core.types import State
from fedloom.errors import BadExperiment, unknown

CORRECTIONS = {"keras": 0, "flower": 1}  # how many steps more than were taken the correction reckons with


@dataclass(frozen=True)
class ServerOptimiser(ABC):
    """A step of the length `rate`."""

    rate: float = 1.0

    def __post_init__(self) -> None:
        if not self.rate >= 0:
            raise BadExperiment(f"rate (of the server's step) is {self.rate}; it must not be negative.")
        for one in fields(self):
            if one.name in ("momentum", "beta1", "beta2") and not 0 <= getattr(self, one.name) < 1:
                raise BadExperiment(f"{one.name} (of the server) is {getattr(self, one.name)}; it lies in [0, 1).")
            if one.name in ("tau", "start") and not getattr(self, one.name) >= 0:
                raise BadExperiment(f"{one.name} (of the server) is {getattr(self, one.name)}; it is 0 or above.")

    @property
    def neutral(self) -> bool:
        """Whether every step is the change itself."""
        return False

    @property
    def untrained(self) -> float:
        """How much of the way running statistics go; never more than all: a variance must not fall below 0."""
        return 1.0

    @abstractmethod
    def begin(self, numbers: Tensor) -> State:
        """Return the moments before the first step; `numbers` [T] give the shape."""

    @abstractmethod
    def move(self, moments: State, change: Tensor) -> tuple[Tensor, State]:
        """Return what is added to the numbers [T], and the new moments, for a change [T]."""


@dataclass(frozen=True)
class ServerSgd(ServerOptimiser):
    """`v <- momentum * v + D`, and the step is `rate * v`; with `nesterov` it is `rate * (D + momentum * v)`."""

    momentum: float = 0.0
    nesterov: bool = False

    @property
    def neutral(self) -> bool:
        """A rate of 1 without momentum."""
        return self.rate == 1 and self.momentum == 0

    @property
    def untrained(self) -> float:
        """A shorter way if the model's is shorter."""
        return min(self.rate, 1.0)

    def begin(self, numbers: Tensor) -> State:
        """A velocity if there is momentum."""
        return {"velocity": torch.zeros_like(numbers)} if self.momentum else {}

    def move(self, moments: State, change: Tensor) -> tuple[Tensor, State]:
        """Along the velocity."""
        if self.momentum == 0:
            return change * self.rate, {}
        velocity = moments["velocity"] * self.momentum + change
        ahead = change + self.momentum * velocity if self.nesterov else velocity
        return ahead * self.rate, {"velocity": velocity}


@dataclass(frozen=True)
class ServerAdagrad(ServerOptimiser):
    """`v <- v + D^2`, and the step is `rate * D / (sqrt(v) + tau)`."""

    rate: float = 0.1
    tau: float = 1e-3
    start: float = 0.0  # of v; the paper's is at least tau^2

    def begin(self, numbers: Tensor) -> State:
        """The sum of squares."""
        return {"second": torch.full_like(numbers, self.start)}

    def move(self, moments: State, change: Tensor) -> tuple[Tensor, State]:
        """Shorter where changes were large."""
        second = moments["second"] + change * change
        return self.rate * change / _root(second, self.tau), {"second": second}


@dataclass(frozen=True)
class ServerAdam(ServerOptimiser):
    """`m <- beta1 m + (1 - beta1) D`, `v <- beta2 v + (1 - beta2) D^2`; the step is `rate * m / (sqrt(v) + tau)`.

    `correct` multiplies it by `sqrt(1 - beta2^t) / (1 - beta1^t)`, where `keras` counts the steps t of a number from 1
    and `flower` from 2; without, as in the paper, nothing is corrected.
    """

    rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    start: float = 0.0  # of v; the paper's is at least tau^2
    correct: Literal["keras", "flower"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.correct is not None and self.correct not in CORRECTIONS:
            raise BadExperiment(unknown("correct (of a server's moments)", self.correct, CORRECTIONS))

    def begin(self, numbers: Tensor) -> State:
        """Both moments, and the steps of each number if they are corrected by it."""
        moments = {"first": torch.zeros_like(numbers), "second": torch.full_like(numbers, self.start)}
        return moments if self.correct is None else {**moments, "count": torch.zeros_like(numbers, dtype=torch.int32)}

    def move(self, moments: State, change: Tensor) -> tuple[Tensor, State]:
        """The ratio of the moments."""
        first = self.beta1 * moments["first"] + (1 - self.beta1) * change
        second = self.second_moment(moments["second"], change * change)
        step, new = self.rate * first / _root(second, self.tau), {"first": first, "second": second}
        if self.correct is None:
            return step, new
        count = moments["count"] + 1
        t = (count + CORRECTIONS[self.correct]).to(step.dtype)
        return step * (1 - self.beta2**t).sqrt() / (1 - self.beta1**t), {**new, "count": count}

    def second_moment(self, before: Tensor, square: Tensor) -> Tensor:
        """A moving mean of squares."""
        return self.beta2 * before + (1 - self.beta2) * square


@dataclass(frozen=True)
class ServerYogi(ServerAdam):
    """As `ServerAdam`, but `v <- v - (1 - beta2) D^2 sign(v - D^2)`, so that v falls more slowly."""

    def second_moment(self, before: Tensor, square: Tensor) -> Tensor:
        """Steps towards the square whose length does not depend on the distance."""
        return before - (1 - self.beta2) * square * (before - square).sign()


def _root(second: Tensor, tau: float) -> Tensor:
    """The divisor, above 0 also where nothing ever changed."""
    return (second.sqrt() + tau).clamp(min=torch.finfo(second.dtype).tiny)
