"""Admit: the contract of single checks, and several checks in order."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from fedloom.core.part import Admit
from fedloom.core.refused import refuse
from fedloom.core.types import Reply, Setting, State, Task

if TYPE_CHECKING:
    from fedloom.method import Method


class Check(Admit):
    """One condition that a reply must meet to count."""

    @property
    @abstractmethod
    def reason(self) -> str:
        """The word of `REASONS` under which replies are refused."""

    @abstractmethod
    def judge(self, setting: Setting, model: Tensor, task: Task, reply: Reply) -> tuple[Tensor, Reply]:
        """Return which replies are refused [C], and the replies, some of whose values the check may have corrected."""

    def __call__(self, memory: State, setting: Setting, model: Tensor, task: Task, reply: Reply) -> tuple[Reply, State]:
        """Mark refused replies as not arrived."""
        bad, corrected = self.judge(setting, model, task, reply)
        read = corrected.params is reply.params and corrected.mask is reply.mask  # unchanged since the round read them
        return refuse(model, corrected, bad, self.reason, read), memory


@dataclass(frozen=True)
class Several(Admit):
    """Checks in order: each gets the replies that the ones before it admitted. Without any, all replies count."""

    checks: tuple[Admit, ...] = ()

    def clash(self, method: Method) -> str | None:
        """The first clash that one of the checks has."""
        return next((why for check in self.checks if (why := check.clash(method)) is not None), None)

    def init(self, setting: Setting, model: Tensor) -> State:
        """The memories of all checks, each under its place."""
        return _joined(check.init(setting, model) for check in self.checks)

    def observe(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> State:
        """Every check observes."""
        owns = enumerate(self.checks)
        return _joined(check.observe(_own(memory, place), setting, model, reply) for place, check in owns)

    @property
    def learns(self) -> bool:
        """Whether one of the checks does."""
        return any(check.learns for check in self.checks)

    def __call__(self, memory: State, setting: Setting, model: Tensor, task: Task, reply: Reply) -> tuple[Reply, State]:
        """Apply the checks one after another."""
        after = []
        for place, check in enumerate(self.checks):
            reply, own = check(_own(memory, place), setting, model, task, reply)
            after.append(own)
        return reply, _joined(after)


def _joined(memories: Iterable[State]) -> State:
    """The memories of several checks as one: a name leads with the check's place."""
    return {f"{place}.{name}": value for place, own in enumerate(memories) for name, value in own.items()}


def _own(memory: State, place: int) -> State:
    """The memory of the check at a place."""
    start = f"{place}."
    return {name.removeprefix(start): value for name, value in memory.items() if name.startswith(start)}
