"""How are messages sent and heard? Through Flower's grid, pushed and pulled at an interval of our own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fedloom.codec import Rejected
from fedloom.flower.records import Item, Parcel, pack, unpack

if TYPE_CHECKING:
    from flwr.app import Message
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
        for name, answer in self._pulled(messages):
            if isinstance(answer, Rejected):
                yield name, answer
            elif answer.has_error():
                yield name, f"its app failed: {answer.error.reason}"
            else:
                try:
                    yield name, unpack(answer.content)
                except Rejected as why:
                    yield name, why

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
