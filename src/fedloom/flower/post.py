"""How are messages sent and heard? Through Flower's grid, pushed and pulled at an interval of our own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fedloom.codec import Rejected
from fedloom.flower.records import Item, Parcel, pack, unpack

if TYPE_CHECKING:
    from flwr.serverapp import Grid

log = logging.getLogger("fedloom")

INTERVAL = 0.2  # seconds between looks for answers


class Post:
    """One run's messages; in place of an answer may stand why it cannot be had (a text) or read (`Rejected`)."""

    def __init__(self, grid: Grid, facts: dict[str, Any], lifetime: float, interval: float = INTERVAL) -> None:
        """`facts` go with every message; one that is not answered after `lifetime` seconds never will be."""
        self._grid, self._facts, self._lifetime, self.interval = grid, facts, lifetime, interval

    def nodes(self) -> set[int]:
        """The nodes that are connected, as far as Flower knows."""
        return set(self._grid.get_node_ids())

    def send(self, kind: str, node: int, facts: dict[str, Any], items: list[Item]) -> str | None:
        """Push a message to a node; its name, None if it was not taken."""
        from flwr.app import Message

        content = pack(Parcel({**self._facts, **facts}, items))
        message = Message(content, dst_node_id=node, message_type=kind, ttl=self._lifetime)
        taken = list(self._grid.push_messages([message]))
        return taken[0] or None if taken else None

    def heard(self, messages: list[str]) -> Iterator[tuple[str, Parcel | Rejected | str]]:
        """The answers that have come to these messages, by the message."""
        if not messages:
            return
        for answer in self._grid.pull_messages(messages):
            name = answer.metadata.reply_to_message_id
            if name not in messages:
                log.warning("an answer to nothing that was asked was dropped")
                continue
            if answer.has_error():
                yield name, f"its app failed: {answer.error.reason}"
                continue
            try:
                yield name, unpack(answer.content)
            except Rejected as why:
                yield name, why
