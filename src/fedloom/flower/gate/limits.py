"""What a gate allows: connections, seconds and bytes."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """The bounds of a gate. A stranger is a connection that has not shown a registered key yet."""

    reply: int  # bytes of all that a node may send in answer to one message
    connections: int = 1024  # at a time
    strangers: int = 16  # at a time from one address
    of_node: int = 8  # connections of one node at a time; Flower's opens up to four
    first: float = 20.0  # seconds until a stranger has shown its key, TLS included
    idle: float = 60.0  # seconds between the requests of a node
    slowest: int = 1000  # bytes a second of bodies and answers, at least
    head: int = 2**14  # bytes of a request's head
    small: int = 2**14  # bytes of the body of a request that brings nothing to store
    chunk: int = 5 * 2**20 + 2**18  # bytes of any body; Flower cuts arrays into 5 MiB
    saved: int = 4  # replies that a node may owe, whose bytes add up

    @property
    def body(self) -> int:
        """Bytes of the body of a request that brings something to store."""
        return min(self.reply, self.chunk)

    def seconds(self, size: int) -> float:
        """The longest that a body or an answer of `size` bytes may take."""
        return self.first + size / self.slowest
