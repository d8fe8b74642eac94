"""How much does a node's link carry beside tasks and replies? By the model of Flower's transport, node by node."""

from __future__ import annotations

from collections import defaultdict

from fedloom.flower.server.transport import APP, CONNECTION, Bytes, Load, connections, exchange, waiting


class Meter:
    """What nodes' links have carried and no table has yet; times are seconds of one clock."""

    def __init__(self, began: float) -> None:
        self._began: float | None = began  # until nodes are first seen, which were there before
        self._carried: defaultdict[int, Bytes] = defaultdict(Bytes)
        self._until: dict[int, float] = {}  # when a node's waiting was last counted
        self._answered: dict[int, float] = {}  # when it last answered

    def seen(self, nodes: set[int], now: float) -> None:
        """Who is connected; others do not wait."""
        self._until |= {node: now for node in self._until if node not in nodes}
        for node in nodes:
            self._until.setdefault(node, now if self._began is None else self._began)
        self._began = None

    def exchange(self, node: int, asked: Load, answer: Load, work: float, now: float) -> None:
        """A node has answered; `work` are the seconds that it says it was busy."""
        since = self._until.get(node, now)
        work = min(max(0.0, work), now - since)
        idle = now - work - self._answered.get(node, float("-inf"))
        self.add(node, exchange(asked, answer).plus(CONNECTION, connections(idle, work)))
        self.add(node, waiting(now - since, work))
        if node not in self._answered:
            self.add(node, APP)
        self._until[node] = self._answered[node] = now

    def add(self, node: int, carried: Bytes) -> None:
        """What else goes over a node's link; below zero what a table has already."""
        self._carried[node] = self._carried[node].plus(carried)

    def take(self, node: int, now: float) -> Bytes:
        """All that a node's link has carried since this was last asked."""
        self.add(node, waiting(now - self._until.get(node, now)))
        self._until[node] = now
        return self._carried.pop(node)
