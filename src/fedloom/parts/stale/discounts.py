"""Discounts: how much a reply counts by its staleness. A fresh reply, of staleness 0, always counts fully."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.errors import BadExperiment


class Discount(ABC):
    """A factor between 0 and 1 by staleness."""

    @abstractmethod
    def __call__(self, staleness: Tensor) -> Tensor:
        """The factor for each staleness, in double precision both; 1 for staleness 0."""


@dataclass(frozen=True)
class Constant(Discount):
    """1, however old a reply is."""

    def __call__(self, staleness: Tensor) -> Tensor:
        """No discount."""
        return torch.ones_like(staleness)


@dataclass(frozen=True)
class Polynomial(Discount):
    """`(1 + tau) ** -exponent`.

    FedAsync's paper counts a fresh reply as 1, so that its discount begins at `2 ** -exponent`; ours begins at 1.
    """

    exponent: float = 0.5

    def __post_init__(self) -> None:
        _refuse_negative("exponent of the polynomial", self.exponent)

    def __call__(self, staleness: Tensor) -> Tensor:
        """Slowly at first for small exponents."""
        return (1 + staleness) ** -self.exponent


@dataclass(frozen=True)
class Hinge(Discount):
    """1 up to a staleness of `bound`, then `1 / (slope * (tau - bound) + 1)`."""

    slope: float = 10.0
    bound: float = 4.0

    def __post_init__(self) -> None:
        _refuse_negative("slope of the hinge", self.slope)
        _refuse_negative("bound of the hinge", self.bound)

    def __call__(self, staleness: Tensor) -> Tensor:
        """Never above 1, also just past the bound."""
        return 1 / (self.slope * (staleness - self.bound).clamp(min=0) + 1)


@dataclass(frozen=True)
class Cutoff(Discount):
    """1 up to a staleness of `bound`, then `rest`."""

    bound: float = 4.0
    rest: float = 0.0

    def __post_init__(self) -> None:
        _refuse_negative("bound of the cutoff", self.bound)
        if not 0 <= self.rest <= 1:
            raise BadExperiment(f"rest (factor past the bound) is {self.rest}; it lies between 0 and 1.")

    def __call__(self, staleness: Tensor) -> Tensor:
        """All or little."""
        return torch.where(staleness <= self.bound, 1.0, self.rest)


def _refuse_negative(name: str, value: float) -> None:
    if not value >= 0:
        raise BadExperiment(f"{name} is {value}; it must not be negative.")
