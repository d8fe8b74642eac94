"""When a round ends before its deadline, and which nodes sit out the rounds after it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

LEAST = 6.0  # seconds; nodes look for messages every three, so equal nodes' answers are that far apart
LONGEST = 16  # rounds that a node sits out at most


class Closing(NamedTuple):
    """The rule of an early end: enough replies are there, and the others take much longer than is usual."""

    slack: float = 0.0  # times the median node's seconds; 0: every round waits until its deadline
    share: float = 0.5  # of the asked clients, whose nodes must have answered
    least: float = LEAST  # seconds that a round waits in any case

    def over(self, nodes: int, took: Sequence[float], clients: int, replies: int, waited: float) -> bool:
        """Whether a round ends now.

        Args:
            nodes: how many were asked and have not failed.
            took: seconds until each of them answered, of those that have.
            clients: how many these nodes were asked for.
            replies: of how many of these clients the node has answered.
            waited: seconds since the round began.

        The median is that of all these nodes, the slower of two in the middle. Those that have not answered count as
        slower than all others, so there is none before more than half of them have.
        """
        middle = nodes // 2
        if not self.slack or not nodes or len(took) <= middle or replies < self.share * clients:
            return False
        return waited >= max(self.least, self.slack * sorted(took)[middle])


AT_DEADLINE = Closing()  # rounds are never ended before


class Bench:
    """Nodes that did not answer in time sit out 1, 2, 4, ... rounds, until they answer in time again."""

    def __init__(self) -> None:
        self._missed: defaultdict[int, int] = defaultdict(int)  # rounds in a row, by node
        self._until: dict[int, int] = {}  # the last round that a node sits out

    def miss(self, node: int, number: int) -> int:
        """A node did not answer round `number` in time; how many rounds it sits out."""
        self._missed[node] += 1
        rounds: int = min(LONGEST, 2 ** (self._missed[node] - 1))
        self._until[node] = number + rounds
        return rounds

    def forgive(self, node: int) -> None:
        """A node has answered in time, or began anew."""
        self._missed.pop(node, None)
        self._until.pop(node, None)

    def sitting(self, number: int) -> set[int]:
        """The nodes that are not asked in round `number`."""
        return {node for node, until in self._until.items() if number <= until}
