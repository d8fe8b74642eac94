"""Who is connected to a gate: strangers by their address, nodes by their key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from fedloom.flower.gate.limits import Limits


@dataclass(eq=False)
class Visitor:
    """A connection."""

    origin: str  # the address, or the network of an IPv6 address, whose owner has all of it
    close: Callable[[], object]
    name: str = ""  # of its node, once it has shown a key


class Door:
    """The open connections; one too many closes an old one, so that nobody keeps others out by doing nothing."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._group: dict[Visitor, str | bytes] = {}  # origin of a stranger, key of a node; the oldest first

    def __len__(self) -> int:
        return len(self._group)

    def enter(self, visitor: Visitor) -> None:
        """Let a stranger in; if the gate is full of nodes it is closed."""
        if len(self._group) >= self._limits.connections:
            strangers = (one for one, group in self._group.items() if one.origin == group)
            oldest = next(strangers, visitor)
            self._close(oldest)
            if oldest is visitor:
                return
        self._join(visitor, visitor.origin, self._limits.strangers)

    def recognise(self, visitor: Visitor, key: bytes) -> None:
        """A connection has shown a node's key."""
        if visitor in self._group and self._group[visitor] != key:
            del self._group[visitor]
            self._join(visitor, key, self._limits.of_node)

    def leave(self, visitor: Visitor) -> None:
        """A connection has ended."""
        self._group.pop(visitor, None)

    def _join(self, visitor: Visitor, group: str | bytes, most: int) -> None:
        """Count a connection in a group, whose oldest is closed if there are too many."""
        same = [one for one, other in self._group.items() if other == group]
        if len(same) >= most:
            self._close(same[0])
        self._group[visitor] = group

    def _close(self, visitor: Visitor) -> None:
        self._group.pop(visitor, None)
        visitor.close()


def origin_of(address: str) -> str:
    """An IPv4 address, or the first half of an IPv6 address."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address) and found.ipv4_mapped is None:
        return found.exploded[:19]
    return str(found if found.version == 4 else found.ipv4_mapped)
