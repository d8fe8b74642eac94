"""Aggregate: a step of another length towards what another aggregate makes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from fedloom.core.part import Aggregate
from fedloom.core.types import Reply, Setting, State
from fedloom.errors import BadExperiment
from fedloom.parts.aggregate.coverage_mean import CoverageMean

if TYPE_CHECKING:
    from fedloom.core.work import Work
    from fedloom.method import Method


@dataclass(frozen=True)
class Stepped(Aggregate):
    """`w + rate * (v - w)` where the model is `w` and another aggregate makes it `v`: a server's learning rate.

    Numbers that are not trained, such as running statistics, go no further than to `v`.
    """

    towards: Aggregate = CoverageMean()
    rate: float = 1.0

    def __post_init__(self) -> None:
        if not self.rate >= 0:
            raise BadExperiment(f"rate (of the server's step) is {self.rate}; it must not be negative.")

    @property
    def reads_weight(self) -> bool:
        """As the other."""
        return self.towards.reads_weight

    @property
    def weighs_rows(self) -> bool:
        """As the other."""
        return self.towards.weighs_rows

    @property
    def learns(self) -> bool:
        """As the other."""
        return self.towards.learns

    @property
    def needs_losses(self) -> bool:
        """As the other."""
        return self.towards.needs_losses

    def clash(self, method: Method) -> str | None:
        """As the other."""
        return self.towards.clash(method)

    def for_work(self, work: Work) -> Self:
        """With the other for this work."""
        return replace(self, towards=self.towards.for_work(work))

    def init(self, setting: Setting, model: Tensor) -> State:
        """The other's memory."""
        return self.towards.init(setting, model)

    def resume(self, setting: Setting, model: Tensor, saved: State) -> State:
        """The other's memory."""
        return self.towards.resume(setting, model, saved)

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """Let the other observe."""
        return self.towards.observe(memory, setting, model, reply)

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Go `rate` times the way; with a rate of 1 nothing is computed."""
        new, memory = self.towards(memory, setting, model, reply)
        if self.rate == 1:
            return new, memory
        trained = setting.layout.trained
        moved = [
            (own - old).mul_(rate).add_(old)
            for own, old, rate in zip(
                (new[:trained], new[trained:]), (model[:trained], model[trained:]), (self.rate, min(self.rate, 1.0))
            )
        ]
        return torch.cat(moved), memory

    def record(self, memory: State) -> State:
        """What the other records."""
        return self.towards.record(memory)

    def note(self, setting: Setting) -> str | None:
        """What the other has to say."""
        return self.towards.note(setting)

    def outcome(self, setting: Setting, rounds: int) -> dict[str, float]:
        """What the other has to say."""
        return self.towards.outcome(setting, rounds)
