"""Messages to nodes and their answers, through Flower's grid."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedloom.codec import Rejected
from fedloom.errors import RunStopped
from fedloom.flower.protocol.owners import fingerprint
from fedloom.flower.protocol.records import NodeMessage, Payload, pack, unpack
from fedloom.flower.protocol.said import said
from fedloom.flower.server.costs import busy_seconds
from fedloom.flower.server.transport import Load, Meter

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid

log = logging.getLogger("fedloom")

INTERVAL = 0.2  # seconds between looks for answers
UNREADABLE = Load(3, 0)  # an answer that cannot be read
SPARE = 8  # items of an answer besides two for each item of the message


class Mailbox:
    """One run's messages. An answer may be a text, why there is none, or `Rejected`, why it cannot be read."""

    def __init__(
        self, grid: Grid, facts: dict[str, Any], lifetime: float, interval: float = INTERVAL, began: float | None = None
    ) -> None:
        """Every message has these `facts`; Flower drops it after `lifetime` seconds.

        `began` is the run's start by the monotonic clock; now, if left out.
        """
        self._grid, self._facts, self._lifetime, self.interval = grid, facts, lifetime, interval
        self.meter = Meter(time.monotonic() if began is None else began)
        self._sent: dict[str, tuple[int, Load]] = {}  # message id -> node and load, of messages without an answer
        self.keys: dict[int, str] = {}  # node -> fingerprint of its key, of those that were asked for
        self._items: dict[str, int] = {}  # message id -> items that an answer may have

    def nodes(self) -> set[int]:
        """The nodes that Flower takes to be connected."""
        with _asking():
            nodes = set(self._grid.get_node_ids())
        self.meter.seen(nodes, time.monotonic())
        return nodes

    def learn_keys(self) -> None:
        """Learn the keys of the nodes that are connected, from the link; a node has one key for life."""
        with _asking():
            found = list(self._grid.get_nodes())
        self.keys |= {one.node_id: fingerprint(one.public_key) for one in found if one.node_id not in self.keys}

    def send(
        self, kind: str, node: int, facts: dict[str, Any], payloads: list[Payload], items: int | None = None
    ) -> str | None:
        """Send a message to a node; its id, or None if Flower did not take it.

        An answer of more than so many `items` is not read; by default, of more than two for each payload and some.
        """
        from flwr.app import Message

        content = NodeMessage({**self._facts, **facts}, payloads)
        message = Message(pack(content), dst_node_id=node, message_type=kind, ttl=self._lifetime)
        with _asking():
            taken = list(self._grid.push_messages([message]))
        if not taken or not taken[0]:
            return None
        self._items[taken[0]] = 2 * len(payloads) + SPARE if items is None else items
        self._sent[taken[0]] = node, Load.of(content)
        return taken[0]

    def receive(self, names: list[str]) -> Iterator[tuple[str, NodeMessage | Rejected | str]]:
        """The answers that have come to the messages with these ids, each with its message's id."""
        if not names:
            return
        for name, pulled in self._pull(names):
            if name not in self._sent:  # a node answers once; who answers again is not heard
                log.warning("a second answer to a message was dropped")
                continue
            answer = pulled if isinstance(pulled, Rejected) else _read(pulled, self._items.pop(name, SPARE))
            node, sent = self._sent.pop(name)
            load, busy = UNREADABLE, 0.0
            if isinstance(answer, NodeMessage):
                load, busy = Load.of(answer), busy_seconds(answer.facts)
            self.meter.exchange(node, sent, load, busy, time.monotonic())
            yield name, answer

    def _pull(self, names: list[str]) -> Iterator[tuple[str, Message | Rejected]]:
        """Flower's answers; if it cannot read one of several, each is pulled by itself, so that only that is lost."""
        try:
            with _asking():
                answers = list(self._grid.pull_messages(names))
        except RunStopped:
            raise
        except Exception as problem:  # noqa: BLE001  whatever a node's bytes make Flower's reader raise
            if len(names) == 1:
                yield names[0], Rejected("header", f"Flower cannot read the message: {type(problem).__name__}.")
                return
            for name in names:
                yield from self._pull([name])
            return
        for answer in answers:
            name = answer.metadata.reply_to_message_id
            if name in names:
                yield name, answer
            else:
                log.warning("an answer to a message that was not sent was dropped")


def _read(answer: Message, items: int) -> NodeMessage | Rejected | str:
    """The content of an answer, or why it has none."""
    if answer.has_error():
        return f"its app failed: {said(answer.error.reason, 500)}"
    try:
        return unpack(answer.content, items)
    except Rejected as why:
        return why


@contextmanager
def _asking() -> Iterator[None]:
    """Within, a link that refuses or does not answer stops the run, and the run says why."""
    from flwr.supercore.run import RunNotRunningException
    from httpx import HTTPError, HTTPStatusError

    try:
        yield
    except RunNotRunningException as problem:
        raise RunStopped("the run was stopped, or the link that was started again no longer counts it.") from problem
    except HTTPStatusError as problem:
        answer = problem.response
        raise RunStopped(
            f"the link answered {answer.status_code} ({said(answer.text.strip() or answer.reason_phrase)}). Its "
            "database may be lost, damaged or on a full disk, or the run was stopped: see the link's log, start it "
            "again with its database, then resume the run."
        ) from problem
    except HTTPError as problem:
        raise RunStopped(
            f"the link does not answer ({type(problem).__name__}: {said(problem)}); start it again, then resume."
        ) from problem
