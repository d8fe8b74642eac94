"""Who is there? Every node is asked once which clients it hosts; the first that says so hosts a client."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from fedloom.codec import Rejected
from fedloom.core.types import Fleet
from fedloom.flower.protocol.records import Parcel, fact
from fedloom.flower.server.mailbox import Post

log = logging.getLogger("fedloom")

LOOK_EVERY = 2.0  # seconds between looks for new nodes


class Known(NamedTuple):
    """What a node says of one of its clients."""

    number: int  # the partition's
    examples: int
    labels: list[int]


class Roster:
    """Which node hosts which client; the first that answers decides whether nodes have data of their own."""

    def __init__(self, post: Post, clients: list[int], fleet: Fleet, total: int, version: str) -> None:
        """`clients` are the numbers of the experiment's `fleet`, `total` the numbers there may be."""
        self._post, self._clients, self._fleet, self._total = post, clients, fleet, total
        self._version = version
        self._asked: dict[str, int] = {}  # message -> node
        self._met: set[int] = set()  # nodes that were asked
        self._there: set[int] = set()
        self._looked = float("-inf")
        self._hosts: dict[int, list[int]] = {}  # number -> nodes, of all that ever said so, the first first
        self.own: bool | None = None  # do nodes have data of their own? None: nobody has answered
        self.tests = False  # and tests of their own?
        self.said: dict[int, Known] = {}  # by number

    @property
    def numbers(self) -> list[int]:
        """Those of the fleet's clients, in its order."""
        return list(range(self._total)) if self.own else self._clients

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
                log.warning("node %d takes no part: %s", node, why.text)

    def _take(self, node: int, facts: dict[str, Any]) -> None:
        if (why := facts.get("refused")) is not None:
            raise Rejected("header", str(why)[:500])
        if facts.get("fedloom") != self._version:
            raise Rejected("version", f"it has fedloom {facts.get('fedloom')!r}, and the server {self._version}.")
        own, tests = fact(facts, "own", bool), fact(facts, "tests", bool)
        clients = [_known(row, self._fleet.labels.shape[1]) for row in fact(facts, "clients", list)]
        if self.own is not None and own != self.own:
            raise Rejected("report", "some nodes have data of their own and others those of the experiment.")
        places = {number: at for at, number in enumerate(self._clients)}
        for client in clients:
            at = client.number if own and client.number < self._total else places.get(client.number)
            if at is None:
                raise Rejected("client", f"client {client.number} is not one of the fleet.")
            facts_of = int(self._fleet.examples[at]), self._fleet.labels[at].tolist()
            if not own and (client.examples, client.labels) != facts_of:
                raise Rejected("report", f"its client {client.number} has other data than the experiment says.")
        self.own, self.tests = own, self.tests or tests
        for client in clients:
            others = self._hosts.setdefault(client.number, [])
            if self._there & set(others):
                log.warning("client %d is hosted by two nodes; the first counts while it is there", client.number)
            others.append(node)
            self.said.setdefault(client.number, client)

    def present(self) -> dict[int, int]:
        """Client of the fleet -> node, of the nodes that are connected as far as is known."""
        there = {n: [node for node in nodes if node in self._there] for n, nodes in self._hosts.items()}
        return {at: there[number][0] for at, number in enumerate(self.numbers) if there.get(number)}

    def missing(self) -> list[int]:
        """The numbers of the clients that nobody hosts."""
        here = self.present()
        return [number for at, number in enumerate(self.numbers) if at not in here]

    def wait(self, seconds: float, tell: Callable[[str], None]) -> None:
        """Until everybody is there, or so long."""
        ends = time.monotonic() + seconds
        while True:
            self.look()
            if not self.missing():
                tell(f"all {len(self.numbers)} clients are there, on {len(set(self.present().values()))} nodes")
                return
            if time.monotonic() >= ends:
                break
            time.sleep(self._post.interval)
        away = self.missing()
        shown = ", ".join(map(str, away[:20])) + (" ..." if len(away) > 20 else "")
        tell(f"{len(away)} of {len(self.numbers)} clients are not there after {seconds:g} s: {shown}")


def _known(row: Any, classes: int) -> Known:
    whole = isinstance(row, list) and len(row) == 3 and isinstance(row[2], list) and len(row[2]) == classes
    if not whole or any(type(n) is not int or not 0 <= n < 2**53 for n in (row[0], row[1], *row[2])) or row[1] < 1:
        raise Rejected("header", f"it says {str(row)[:100]!r} of a client; expected number, examples, labels.")
    return Known(*row)
