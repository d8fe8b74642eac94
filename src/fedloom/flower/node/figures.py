"""What a node has done, for Prometheus, and whether it is well."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fedloom.flower.node.reports import Heard
from fedloom.flower.protocol.figures import Figure, Health

LONELY = 120.0  # seconds without an answer of the link, after which a node is not well; it calls every 20 s


@dataclass
class NodeFigures:
    """Counts of one node's process since its start."""

    heard: Heard
    memory: Callable[[], dict[str, float]]  # bytes by kind of process
    began: float
    answered: int = 0  # messages
    failed: int = 0  # messages whose app raised an error or died
    busy: int = 0  # messages that are being answered

    def ended(self, well: bool) -> None:
        """A message was answered, or its app failed."""
        self.answered, self.failed = self.answered + well, self.failed + (not well)

    def figures(self) -> list[Figure]:
        """All that Prometheus is told."""
        heard = self.heard
        return [
            Figure("node_messages_answered", "messages that were answered", self.answered, counts=True),
            Figure("node_errors", "messages whose app failed or died", self.failed, counts=True),
            Figure("node_busy", "messages that are being answered", self.busy),
            Figure("node_link_contact_timestamp_seconds", "when the link last answered", heard.answered),
            Figure("node_link_status", "HTTP status of the last call of the link; 0: no answer", heard.status),
            Figure("node_memory_bytes", "memory of the node, of which pages are shared", self.memory(), "process"),
        ]

    def health(self) -> Health:
        """Whether the link answers."""
        silent = time.time() - (self.heard.answered or self.began)
        last = (
            "the link has not answered yet" if self.heard.answered is None else f"the link answered {silent:.0f} s ago"
        )
        return Health(silent < LONELY, f"{last}; {self.answered} messages answered, {self.failed} failed")
