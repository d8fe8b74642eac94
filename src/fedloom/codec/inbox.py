"""`Inbox`, the messages of a round: each awaited client's first valid message counts, once.

Nothing here waits: the caller hands over messages with the senders that the connection authenticated, and asks whether
the round is over. C clients in the cohort, P numbers in the model.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from fedloom.codec.expected import Expected, Message
from fedloom.codec.model_part import ModelPart
from fedloom.codec.read import decode
from fedloom.codec.rejected import Rejected
from fedloom.core.refused import Reason
from fedloom.core.types import Reply, State, Task
from fedloom.errors import BadExperiment


@dataclass(eq=False)
class Inbox:
    """The messages of one attempt at a round; refused messages are counted by reason and change nothing."""

    awaited: Mapping[int, Expected]  # by client
    quorum: int = 1  # replies without which a round does not count
    seconds: float | None = None  # from now on, until replies are late; None: no limit
    clock: Callable[[], float] = time.monotonic  # not the wall clock, which may jump
    accepted: dict[int, Message] = field(default_factory=dict, init=False)
    refused: Counter[Reason] = field(default_factory=Counter, init=False)
    why: dict[int, Rejected] = field(default_factory=dict, init=False)  # the last refusal of an awaited client

    def __post_init__(self) -> None:
        """Check the settings and start the clock."""
        if not self.quorum >= 1:
            raise BadExperiment(f"quorum (replies a round needs) is {self.quorum}; expected 1 or more.")
        if self.seconds is not None and not self.seconds > 0:
            raise BadExperiment(f"seconds until a round closes is {self.seconds}; expected above 0.")
        self._closes = torch.inf if self.seconds is None else self.clock() + self.seconds

    def expect(self, client: int, expected: Expected) -> None:
        """Replace what is expected of a client, once its form is known."""
        self.awaited = {**self.awaited, client: expected}

    def take(self, sender: int, data: bytes | bytearray | memoryview) -> Reason | None:
        """Accept a message (None) or refuse it; `sender` is known from the connection, not from the bytes."""
        try:
            message = self._read(sender, data)
        except Rejected as why:
            self.refuse(sender, why)
            return why.reason
        self.accepted[sender] = message
        return None

    def refuse(self, sender: int, why: Rejected) -> None:
        """Count a message that was refused, here or before."""
        self.refused[why.reason] += 1
        if sender in self.awaited:
            self.why[sender] = why

    def _read(self, sender: int, data: bytes | bytearray | memoryview) -> Message:
        """Decode the message if it can still count."""
        if self.late:
            raise Rejected("late", f"the round closed {self.clock() - self._closes:.1f} seconds ago.")
        if sender not in self.awaited:
            raise Rejected("client", "nothing was asked of the sender in this round.")
        if sender in self.accepted:
            raise Rejected("duplicate", "a reply of this client has been accepted already.")
        return decode(data, self.awaited[sender])

    @property
    def late(self) -> bool:
        """Whether the time is up."""
        return self.clock() >= self._closes

    @property
    def over(self) -> bool:
        """Whether no more messages are awaited."""
        return self.late or len(self.accepted) == len(self.awaited)

    @property
    def enough(self) -> bool:
        """Whether enough messages arrived for a round."""
        return len(self.accepted) >= self.quorum

    def reply(self, ids: Tensor, task: Task, changes: bool = False) -> Reply:
        """The cohort's replies; all count as lost if there are too few. `changes`: values are added to the model."""
        found = [self.accepted.get(client) if self.enough else None for client in ids.tolist()]
        model = task.model.detach().cpu()
        frame = next(iter(self.awaited.values())).frame
        whole = all(isinstance(e.part, ModelPart) and e.part.whole for e in self.awaited.values())

        def rows(read: Callable[[Message], Tensor], missing: Tensor) -> Tensor:
            return torch.stack([missing if one is None else read(one) for one in found]).to(task.model.device)

        def params(message: Message) -> Tensor:
            return model + message.on(torch.zeros_like(model)) if changes else message.on(model)

        def mask(message: Message) -> Tensor:
            return torch.ones(len(model), dtype=torch.bool) if message.mask is None else message.mask

        extras: State = {}
        for name, (dtype, shape) in frame.extras.items():
            extras[name] = rows(partial(_extra, name), torch.zeros(shape, dtype=dtype))
        report: State = {}
        for name, allowed in frame.report.items():
            none = torch.zeros((), dtype=torch.int64 if allowed.whole else model.dtype)
            report[name] = rows(partial(_reported, name, none), none)
        return Reply(
            ids=ids,
            params=rows(params, model),
            mask=None if whole else rows(mask, torch.zeros(len(model), dtype=torch.bool)),
            extras=extras,
            report=report,
            arrived=torch.tensor([one is not None for one in found], device=ids.device),
        )


def _extra(name: str, message: Message) -> Tensor:
    """One of a message's extras."""
    return message.extras[name]


def _reported(name: str, like: Tensor, message: Message) -> Tensor:
    """One of a message's reported numbers."""
    return torch.tensor(message.report[name], dtype=like.dtype)
