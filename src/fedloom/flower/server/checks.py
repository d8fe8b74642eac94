"""The checks of replies that a real network has by default, and a line in the log for every reply that they refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor

from fedloom.core.part import Admit
from fedloom.core.types import Reply, Setting, State, Task
from fedloom.method import Method
from fedloom.parts.admit.bounded import Bounded
from fedloom.parts.admit.check import Several
from fedloom.parts.admit.part_asked import WithinShare
from fedloom.parts.admit.relative import Relative
from fedloom.parts.aggregate.private_mean import PrivateMean


@dataclass(frozen=True)
class Tell(Admit):
    """Call a function with the replies; all that were admitted stay so."""

    say: Callable[[Reply], None] = field(repr=False, compare=False)

    def __call__(self, memory: State, setting: Setting, model: Tensor, task: Task, reply: Reply) -> tuple[Reply, State]:
        """Admit what was admitted."""
        self.say(reply)
        return reply, memory


def with_checks(method: Method, chosen: str, say: Callable[[Reply], None]) -> Method:
    """The method with a network's checks; where the experiment has `chosen` others than the method's own, with those.

    Replies have at most the numbers that the server allowed, in a range that can be computed with, and are not far
    longer than the others. `say` is called with the replies after the checks.
    """
    checks: list[Admit] = [method.admit.checking]
    if chosen == "own":
        if not method.masks_known:  # else the codec compares masks
            checks.append(WithinShare())
        checks.append(Bounded())
        if not isinstance(method.aggregate, PrivateMean):  # which clips, and lets no reply decide about another
            checks.append(Relative())
    return replace(method, admit=method.admit.checked_by(Several((*checks, Tell(say)))))
