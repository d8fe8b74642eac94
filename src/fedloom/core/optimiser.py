"""Optimisers: step rules over a cohort's rows [C, T], in place; by default without state between rounds.

C clients in the cohort, T trained numbers of the model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.types import State
from fedloom.errors import BadExperiment


@dataclass(frozen=True, kw_only=True)
class Optimiser(ABC):
    """A step rule with learning rate `rate * decay**(round - 1)`; `clip` bounds each client's gradient norm."""

    rate: float = 0.1
    decay: float = 1.0  # of the learning rate, per round
    weight_decay: float = 0.0
    clip: float | None = None  # after corrections, before weight decay
    fresh: bool = True  # False: moments are kept in the client's state from round to round

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise BadExperiment(f"rate (learning rate) is {self.rate}; it must be above 0.")
        if not 0 < self.decay <= 1:
            raise BadExperiment(f"decay of the learning rate per round is {self.decay}; it lies in (0, 1].")
        if self.weight_decay < 0:
            raise BadExperiment(f"weight_decay is {self.weight_decay}; it must not be negative.")
        if self.clip is not None and not self.clip > 0:
            raise BadExperiment(f"clip (bound of the gradient norm) is {self.clip}; it must be above 0, or none.")

    @property
    def plain(self) -> bool:
        """Whether a step is just `w <- (1 - rate * weight_decay) * w - rate * gradient`."""
        return False

    @property
    def heavy(self) -> bool:
        """Whether a step is just that with heavy-ball `momentum` whose velocity starts from zero every round."""
        return False

    @property
    def momentum(self) -> float:
        """The momentum of a `heavy` optimiser."""
        return 0.0

    def rate_at(self, round: int) -> float:
        """The learning rate of a round, counted from 1."""
        return self.rate * self.decay ** (round - 1)

    @abstractmethod
    def begin(self, params: Tensor) -> State:
        """Return the moments before the first step, one row per client; `params` [C, T] gives the shape."""

    @abstractmethod
    def move(self, moments: State, grads: Tensor, rate: float) -> Tensor:
        """Return what to subtract from the weights [C, T]; changes `moments` in place."""

    def step(
        self, moments: State, params: Tensor, grads: Tensor, rate: float, trains: Tensor | None, varies: bool = False
    ) -> None:
        """Update `params` [C, T] in place; numbers outside `trains` neither change nor count in the gradient norm.

        `varies`: other steps train other numbers, so that the moments of those outside stay.
        """
        if trains is not None:
            grads = torch.where(trains, grads, 0)
        if self.clip is not None:
            norm = torch.linalg.vector_norm(grads, dim=1, keepdim=True)
            grads = grads * (self.clip / norm.clamp(min=self.clip))
        if self.weight_decay:
            grads = grads.add(params, alpha=self.weight_decay)
        if trains is None:
            params.sub_(self.move(moments, grads, rate))
            return
        kept = moments if varies or not self.fresh else {}  # fresh moments are read nowhere else
        before = {name: value.clone() for name, value in kept.items() if value.shape == params.shape}
        params.sub_(torch.where(trains, self.move(moments, grads, rate), 0))
        for name, value in before.items():  # kept moments do not change there either
            moments[name].copy_(torch.where(trains, moments[name], value))


@dataclass(frozen=True, kw_only=True)
class Sgd(Optimiser):
    """Stochastic gradient descent, optionally with heavy-ball momentum."""

    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise BadExperiment(f"momentum is {self.momentum}; it lies in [0, 1).")

    @property
    def plain(self) -> bool:
        """No momentum and no clipping."""
        return self.momentum == 0 and self.clip is None

    @property
    def heavy(self) -> bool:
        """Momentum that is reset every round, and no clipping."""
        return self.momentum > 0 and self.clip is None and self.fresh

    def begin(self, params: Tensor) -> State:
        """A velocity of zeros if there is momentum."""
        return {"velocity": torch.zeros_like(params)} if self.momentum else {}

    def move(self, moments: State, grads: Tensor, rate: float) -> Tensor:
        """`v <- momentum * v + g`; the move is `rate * v`."""
        if self.momentum:
            grads = moments["velocity"].mul_(self.momentum).add_(grads)
        return grads * rate


@dataclass(frozen=True, kw_only=True)
class Adam(Optimiser):
    """Adam with bias correction; weight decay is added to the gradient, as in the original paper."""

    rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0 <= beta < 1:
                raise BadExperiment(f"{name} is {beta}; it lies in [0, 1).")

    def begin(self, params: Tensor) -> State:
        """Zeros for both moments, and each client's count of steps."""
        count = torch.zeros(params.shape[0], 1, dtype=params.dtype, device=params.device)
        return {"first": torch.zeros_like(params), "second": torch.zeros_like(params), "count": count}

    def move(self, moments: State, grads: Tensor, rate: float) -> Tensor:
        """The ratio of the bias-corrected moments."""
        count = moments["count"].add_(1)
        first = moments["first"].lerp_(grads, 1 - self.beta1)
        second = moments["second"].mul_(self.beta2).addcmul_(grads, grads, value=1 - self.beta2)
        root = (second / (1 - self.beta2**count)).sqrt_().add_(self.eps)
        return first / (1 - self.beta1**count) / root * rate
