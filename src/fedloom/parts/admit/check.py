"""Which replies count? Checks, alone or several in order."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from fedloom.core.part import Admit
from fedloom.core.refused import refuse
from fedloom.core.types import Reply, Setting, State, Task

if TYPE_CHECKING:
    from fedloom.method import Method


class Check(Admit):
    """One thing that a reply must be."""

    @property
    @abstractmethod
    def reason(self) -> str:
        """Why it refuses, a word of `REASONS`."""

    @abstractmethod
    def judge(self, setting: Setting, model: Tensor, task: Task, reply: Reply) -> tuple[Tensor, Reply]:
        """Whom it refuses [C], and the replies as it leaves them: some checks mend."""

    def __call__(self, memory: State, setting: Setting, model: Tensor, task: Task, reply: Reply) -> tuple[Reply, State]:
        """Refused replies have not arrived."""
        bad, mended = self.judge(setting, model, task, reply)
        read = mended.params is reply.params and mended.mask is reply.mask  # as the round left them before any check
        return refuse(model, mended, bad, self.reason, read), memory


@dataclass(frozen=True)
class Several(Admit):
    """Checks in order: each sees what those before it let through. None at all admits everything."""

    checks: tuple[Check, ...] = ()

    def clash(self, method: Method) -> str | None:
        """The first that one of them has."""
        return next((why for check in self.checks if (why := check.clash(method)) is not None), None)

    def __call__(self, memory: State, setting: Setting, model: Tensor, task: Task, reply: Reply) -> tuple[Reply, State]:
        """One after the other."""
        for check in self.checks:
            reply, _ = check({}, setting, model, task, reply)
        return reply, memory
