"""How are messages sent and heard? Through Flower's grid, pushed and pulled at an interval of our own."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fedloom.codec import Rejected
from fedloom.flower.protocol.records import Item, Parcel, pack, unpack
from fedloom.flower.protocol.transport import Load
from fedloom.flower.server.costs import work_of
from fedloom.flower.server.meter import Meter

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid

log = logging.getLogger("fedloom")

INTERVAL = 0.2  # seconds between looks for answers
EMPTY = Load(3, 0)  # an answer that cannot be read


class Post:
    """One run's messages; in place of an answer may stand why it cannot be had (a text) or read (`Rejected`)."""

    def __init__(
        self, grid: Grid, facts: dict[str, Any], lifetime: float, interval: float = INTERVAL, began: float | None = None
    ) -> None:
        """`facts` go with every message; one that is not answered after `lifetime` seconds never will be.

        The run `began` by the monotonic clock; now, if left out.
        """
        self._grid, self._facts, self._lifetime, self.interval = grid, facts, lifetime, interval
        self.meter = Meter(time.monotonic() if began is None else began)
        self._asked: dict[str, tuple[int, Load]] = {}  # node and message, of what was not answered

    def nodes(self) -> set[int]:
        """The nodes that are connected, as far as Flower knows."""
        nodes = set(self._grid.get_node_ids())
        self.meter.seen(nodes, time.monotonic())
        return nodes

    def send(self, kind: str, node: int, facts: dict[str, Any], items: list[Item]) -> str | None:
        """Push a message to a node; its name, None if it was not taken."""
        from flwr.app import Message

        parcel = Parcel({**self._facts, **facts}, items)
        message = Message(pack(parcel), dst_node_id=node, message_type=kind, ttl=self._lifetime)
        taken = list(self._grid.push_messages([message]))
        if not taken or not taken[0]:
            return None
        self._asked[taken[0]] = node, Load.of(parcel)
        return taken[0]

    def heard(self, messages: list[str]) -> Iterator[tuple[str, Parcel | Rejected | str]]:
        """The answers that have come to these messages, by the message."""
        if not messages:
            return
        for name, answer in self._pulled(messages):
            said = answer if isinstance(answer, Rejected) else _read(answer)
            if name in self._asked:  # of several answers the first is counted
                node, asked = self._asked.pop(name)
                load, work = (Load.of(said), work_of(said.facts)) if isinstance(said, Parcel) else (EMPTY, 0.0)
                self.meter.exchange(node, asked, load, work, time.monotonic())
            yield name, said

    def _pulled(self, messages: list[str]) -> Iterator[tuple[str, Message | Rejected]]:
        """What Flower has for these; a message that Flower itself cannot read must not take others with it."""
        from httpx import HTTPError

        try:
            answers = list(self._grid.pull_messages(messages))
        except HTTPError:
            raise
        except Exception as problem:  # noqa: BLE001  whatever a node's bytes make Flower's reader do
            if len(messages) == 1:
                yield messages[0], Rejected("header", f"Flower cannot read the message: {type(problem).__name__}.")
                return
            for name in messages:
                yield from self._pulled([name])
            return
        for answer in answers:
            name = answer.metadata.reply_to_message_id
            if name in messages:
                yield name, answer
            else:
                log.warning("an answer to nothing that was asked was dropped")


def _read(answer: Message) -> Parcel | Rejected | str:
    """What an answer says."""
    if answer.has_error():
        return f"its app failed: {answer.error.reason}"
    try:
        return unpack(answer.content)
    except Rejected as why:
        return why
