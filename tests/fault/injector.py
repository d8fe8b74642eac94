"""A seeded injector between engine and round: every reply becomes real bytes, and most of them come to grief."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from codec.parcels import claim, edit
from fedloom.chance import Chance
from fedloom.codec import AnyKeep, AnyMask, Codec, Expected, Inbox, ModelPart, Range, Stamp, base_hash, encode
from fedloom.core.types import Reply, Setting, Task
from fedloom.engine.protocol import Engine
from fedloom.method import Method
from fedloom.world.message_parts import MessageParts

DEADLINE = 100.0  # seconds on the injector's clock


class Letter(NamedTuple):
    """A client's true reply, and all that is needed to forge another."""

    client: int
    data: bytes
    expected: Expected
    values: Tensor  # [P]
    part: ModelPart
    extras: dict[str, Tensor]
    report: dict[str, float]

    def forged(self, **changes: object) -> bytes:
        """The reply written with other facts."""
        words = {"frame": self.expected.frame, "stamp": self.expected.stamp, "values": self.values, "part": self.part}
        return encode(**{**words, "extras": self.extras, "report": self.report, **changes})  # type: ignore[arg-type]

    def stamped(self, **changes: object) -> bytes:
        """The reply with another stamp."""
        return self.forged(stamp=replace(self.expected.stamp, **changes))  # type: ignore[arg-type]


class Delivery(NamedTuple):
    """Bytes on their way."""

    at: float  # seconds after the round began
    sender: int
    data: bytes
    true: bool = False  # whether they are the client's own reply, unharmed


class Mail(NamedTuple):
    """What a fault may draw on."""

    random: np.random.Generator
    old: list[bytes]  # messages of earlier rounds
    others: list[Letter]  # of this round


Fault = Callable[[Letter, Mail], list[Delivery]]


def _when(mail: Mail, low: float = 0.0, high: float = DEADLINE) -> float:
    return float(mail.random.uniform(low, high))


def _only(letter: Letter, mail: Mail, data: bytes) -> list[Delivery]:
    """The harmed reply and nothing else."""
    return [Delivery(_when(mail), letter.client, data)]


def _beside(letter: Letter, mail: Mail, *others: bytes) -> list[Delivery]:
    """The true reply, and others from the same sender before and after it."""
    sent = [Delivery(_when(mail), letter.client, data) for data in others]
    return [*sent, Delivery(_when(mail), letter.client, letter.data, true=True)]


def _flipped(data: bytes, mail: Mail) -> bytes:
    raw = bytearray(data)
    for at in mail.random.choice(8 * len(raw), mail.random.integers(1, 9), replace=False):
        raw[at // 8] ^= 1 << (at % 8)
    return bytes(raw)


def _with_nan(letter: Letter, mail: Mail) -> bytes:
    mask = letter.part.numbers(letter.expected.frame.host)
    sent = torch.arange(len(letter.values)) if mask is None else mask.nonzero().flatten()
    bad = (torch.nan, torch.inf, -torch.inf)[mail.random.integers(0, 3)]
    return letter.forged(values=letter.values.index_fill(0, sent[mail.random.integers(0, len(sent))], bad))


def _another_part(letter: Letter) -> bytes:
    """Another mask than the one that was asked for; all where the client may choose, a part where all was asked for."""
    mask = letter.part.numbers(letter.expected.frame.host)
    if isinstance(letter.expected.part, AnyMask):
        return letter.forged(part=ModelPart())
    other = torch.ones(letter.expected.frame.total, dtype=torch.bool) if mask is None else mask.clone()
    other[:2] = ~other[:2]
    return letter.forged(part=ModelPart(mask=other))


# what is lost by it: only the harmed message is sent
LOSING: dict[str, Fault] = {
    "dropped": lambda letter, mail: [],
    "cut": lambda letter, mail: _only(letter, mail, letter.data[: mail.random.integers(0, len(letter.data))]),
    "flipped": lambda letter, mail: _only(letter, mail, _flipped(letter.data, mail)),
    "late": lambda letter, mail: [Delivery(_when(mail, DEADLINE, 2 * DEADLINE), letter.client, letter.data)],
    "too long": lambda letter, mail: _only(letter, mail, letter.data + bytes(letter.expected.limit)),
    "NaN": lambda letter, mail: _only(letter, mail, _with_nan(letter, mail)),
    "other shape": lambda letter, mail: _only(letter, mail, claim(letter.data, "values", shape=[1, 3])),
    "other dtype": lambda letter, mail: _only(letter, mail, claim(letter.data, "values", dtype="F64")),
    "bomb": lambda letter, mail: _only(letter, mail, claim(letter.data, "values", shape=[2**40])),
    "other version": lambda letter, mail: _only(letter, mail, edit(letter.data, "fedloom-1", "fedloom-2")),
    "other run": lambda letter, mail: _only(letter, mail, letter.stamped(run="another")),
    "other round": lambda letter, mail: _only(letter, mail, letter.stamped(round=letter.expected.stamp.round + 1)),
    "other model": lambda letter, mail: _only(letter, mail, letter.stamped(base="0" * 16)),
    "other client": lambda letter, mail: _only(letter, mail, letter.stamped(client=letter.client + 1)),
    "other part": lambda letter, mail: _only(letter, mail, _another_part(letter)),
    "impossible weight": lambda letter, mail: _only(
        letter,
        mail,
        letter.forged(report={**letter.report, "examples": (0, -1, np.nan, 1e18)[mail.random.integers(4)]}),
    ),
}
# what must do no harm: the true reply arrives, whatever comes beside it
HARMLESS: dict[str, Fault] = {
    "nothing": lambda letter, mail: _beside(letter, mail),
    "three times": lambda letter, mail: 3 * _beside(letter, mail),
    "damaged, then sent again": lambda letter, mail: [
        Delivery(_when(mail, 0, 50), letter.client, _flipped(letter.data, mail)),
        Delivery(_when(mail, 50), letter.client, letter.data, true=True),
    ],
    "replayed": lambda letter, mail: _beside(letter, mail, *mail.old[-10:]),
    "of another run too": lambda letter, mail: _beside(letter, mail, letter.stamped(run="another")),
    "a stranger's copy": lambda letter, mail: [
        Delivery(_when(mail), 10**6 + letter.client, letter.data),
        *_beside(letter, mail),
    ],
    "another's name": lambda letter, mail: [
        Delivery(_when(mail, 0, 1), letter.client, mail.others[mail.random.integers(0, len(mail.others))].stamped(
            client=letter.client + 1)),
        *_beside(letter, mail),
    ],
    "delivered again when it is over": lambda letter, mail: [
        *_beside(letter, mail),
        Delivery(_when(mail, DEADLINE, 2 * DEADLINE), letter.client, letter.data),
    ],
}  # fmt: skip
FAULTS = {**LOSING, **HARMLESS}


@dataclass
class Injector:
    """An engine whose replies travel as bytes and meet the given faults; `arrived` is for others to compare with."""

    engine: Engine
    method: Method
    setting: Setting
    seed: int
    faults: tuple[str, ...] = tuple(FAULTS)
    quorum: int = 1
    injected: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    arrived: list[set[int]] = field(default_factory=list)  # by round: whose true reply came in time
    counted: list[bool] = field(default_factory=list)  # by round: whether they were enough
    _old: list[bytes] = field(default_factory=list)
    _capacity: list[Delivery] = field(default_factory=list)  # for the next round

    def train(self, ids: Tensor, task: Task, chance: Chance) -> Reply:
        """Train, write, deliver and read."""
        reply = self.engine.train(ids, task, chance)
        letters = self._letters(task, reply)
        mail = Mail(np.random.default_rng((self.seed, task.round)), self._old, letters)
        deliveries, self._capacity = self._capacity, []
        for letter in letters:
            name = self.faults[mail.random.integers(0, len(self.faults))]
            self.injected[name] += name != "nothing"
            deliveries += FAULTS[name](letter, mail)
        now = 0.0
        inbox = Inbox({one.client: one.expected for one in letters}, self.quorum, DEADLINE, lambda: now)
        for delivery in sorted(deliveries, key=lambda one: one.at):  # every fault chose its moment: order is chance
            now = delivery.at
            inbox.take(delivery.sender, delivery.data)
            if now >= DEADLINE:
                self._capacity.append(delivery._replace(at=now - DEADLINE, true=False))  # and again, a round too late
        now = DEADLINE
        true = {one.sender for one in deliveries if one.true}
        assert set(inbox.accepted) == true, "exactly the true replies are accepted"
        assert inbox.over
        assert sum(inbox.refused.values()) + len(inbox.accepted) == len(deliveries), "all is counted"
        self.refused.update(inbox.refused)
        self.arrived.append(true)
        self.counted.append(inbox.enough)
        self._old += [letter.data for letter in letters]
        return inbox.reply(ids, task)

    def _letters(self, task: Task, reply: Reply) -> list[Letter]:
        """Every reply that may be sent, as bytes; what the server chose it derives itself."""
        parts = MessageParts(self.method, self.setting, Codec())
        part, base = parts.sent(task, reply), base_hash(task.model)
        most = int(self.setting.fleet.examples.max())
        ranges = {name: Range() for name in reply.report} | {"examples": Range(1, most, whole=True)}
        frame = parts.frame(reply.extras, ranges | {"steps": Range(0, whole=True)}, part)
        assert set(frame.extras) == set(reply.extras), "extras that do not travel"
        letters = []
        for row in reply.arrived.nonzero().flatten().tolist():
            mask, keep = (None if given is None else given[row] for given in (part.mask, part.keep))
            own = part._replace(mask=mask, keep=keep)
            asked: ModelPart | AnyMask | AnyKeep = own
            if not self.method.upload.sends_what_came and not own.whole:
                wide = keep is not None and frame.neurons is not None and len(keep) > frame.neurons.size
                asked = AnyMask(1.0) if keep is None else AnyKeep(1.0, own.rows, wide)
            client = int(reply.ids[row])
            expected = Expected(frame, Stamp("the run", task.round, client, base), asked)
            extras = {name: value[row] for name, value in reply.extras.items()}
            report = {name: float(value[row]) for name, value in reply.report.items()}
            data = encode(frame, expected.stamp, reply.params[row], own, extras=extras, report=report)
            letters.append(Letter(client, data, expected, reply.params[row], own, extras, report))
        return letters
