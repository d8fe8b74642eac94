"""The bytes that each node may still send to be stored: those of a reply for every message that it was given."""

from __future__ import annotations

from fedloom.flower.gate.limits import Limits


class Budget:
    """Bytes left to each node, by its key. A node that is new here may answer one message."""

    def __init__(self, limits: Limits) -> None:
        self._reply, self._most = limits.reply, limits.saved * limits.reply
        self._left: dict[bytes, int] = {}

    def take(self, key: bytes, size: int) -> bool:
        """Whether a node may send so many bytes, which are taken from what it has."""
        left = self._left.get(key, self._reply)
        if size > left:
            return False
        self._left[key] = left - size
        return True

    def add(self, key: bytes, size: int) -> None:
        """Bytes that were not stored in the end, or that a node may send in addition."""
        self._left[key] = min(self._most, self._left.get(key, self._reply) + size)

    def given(self, key: bytes, messages: int) -> None:
        """A node was given messages, which it will answer."""
        self.add(key, messages * self._reply)
