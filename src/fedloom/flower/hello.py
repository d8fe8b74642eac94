"""Who is there? Every node is asked once which clients it hosts; the first that says so hosts a client."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from fedloom.codec import Rejected
from fedloom.flower.post import Post
from fedloom.flower.records import Parcel

if TYPE_CHECKING:
    from fedloom.simulation import Simulation

log = logging.getLogger("fedloom")

LOOK_EVERY = 2.0  # seconds between looks for new nodes


class Known(NamedTuple):
    """What a node says of one of its clients."""

    number: int  # the partition's
    examples: int
    labels: list[int]


class Roster:
    """Which node hosts which client of the fleet."""

    def __init__(self, post: Post, world: Simulation, version: str) -> None:
        self._post, self._version = post, version
        self._place = {number: at for at, number in enumerate(world.clients)}
        self._fleet = world.setting.fleet
        self._asked: dict[str, int] = {}  # message -> node
        self._met: set[int] = set()  # nodes that were asked
        self._there: set[int] = set()
        self._looked = float("-inf")
        self.host: dict[int, int] = {}  # client -> node, of all that ever said so
        self.refused: dict[int, str] = {}  # node -> why

    def look(self, at_once: bool = False) -> None:
        """Ask who is new, and hear who has answered; nothing here waits."""
        now = time.monotonic()
        if at_once or now - self._looked >= LOOK_EVERY:
            self._looked, self._there = now, self._post.nodes()
            for node in sorted(self._there - self._met):
                self._met.add(node)
                if (message := self._post.send("query", node, {"hello": self._version}, [])) is not None:
                    self._asked[message] = node
        for message, answer in self._post.heard(list(self._asked)):
            node = self._asked.pop(message)
            try:
                if not isinstance(answer, Parcel):
                    raise Rejected("header", str(answer))
                self._take(node, answer.facts)
            except Rejected as why:
                self.refused[node] = why.text
                log.warning("node %d takes no part: %s", node, why.text)

    def _take(self, node: int, facts: dict[str, Any]) -> None:
        if (why := facts.get("refused")) is not None:
            raise Rejected("header", str(why)[:500])
        if facts.get("fedloom") != self._version:
            raise Rejected("version", f"it has fedloom {facts.get('fedloom')!r}, and the server {self._version}.")
        for client in [_known(row) for row in _list(facts.get("clients"))]:
            at = self._place.get(client.number)
            if at is None:
                continue  # without examples: it is not in the fleet
            if client.examples != int(self._fleet.examples[at]) or client.labels != self._fleet.labels[at].tolist():
                raise Rejected("report", f"its client {client.number} has other data than the experiment says.")
            if self.host.get(at, node) != node and self.host[at] in self._there:
                log.warning("client %d is hosted by two nodes; the first one counts", client.number)
                continue
            self.host[at] = node

    def present(self) -> dict[int, int]:
        """Client -> node, of the nodes that are connected as far as is known."""
        return {client: node for client, node in self.host.items() if node in self._there}

    def missing(self) -> list[int]:
        """The numbers of the clients that nobody hosts."""
        here = self.present()
        return [number for number, at in self._place.items() if at not in here]

    def wait(self, seconds: float, tell: Callable[[str], None]) -> None:
        """Until everybody is there, or so long."""
        ends = time.monotonic() + seconds
        while True:
            self.look()
            if not self.missing():
                tell(f"all {len(self._place)} clients are there, on {len(set(self.host.values()))} nodes")
                return
            if time.monotonic() >= ends:
                break
            time.sleep(self._post.interval)
        away = self.missing()
        shown = ", ".join(map(str, away[:20])) + (" ..." if len(away) > 20 else "")
        tell(f"{len(away)} of {len(self._place)} clients are not there after {seconds:g} s: {shown}")


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Rejected("header", "it does not say which clients it hosts.")
    return value


def _known(row: Any) -> Known:
    whole = isinstance(row, list) and len(row) == 3 and isinstance(row[2], list)
    if not whole or any(type(n) is not int or n < 0 for n in (row[0], row[1], *row[2])):
        raise Rejected("header", f"it says {str(row)[:100]!r} of a client; expected number, examples, labels.")
    return Known(*row)
