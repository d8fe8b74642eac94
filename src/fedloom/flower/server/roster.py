"""The nodes that are connected and the clients that they host; the first node to name a client hosts it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from fedloom.codec import Rejected
from fedloom.core.types import Fleet
from fedloom.flower.protocol.records import NodeMessage, fact
from fedloom.flower.server.mailbox import Mailbox

log = logging.getLogger("fedloom")

LOOK_EVERY = 2.0  # seconds between looks for new nodes


class ReportedClient(NamedTuple):
    """One of a node's clients, as the node reports it."""

    number: int  # in the partition
    examples: int
    labels: list[int]  # examples of each label


class Roster:
    """Which node hosts which client. The first node that answers decides whether nodes have data of their own."""

    def __init__(
        self, mailbox: Mailbox, clients: list[int], fleet: Fleet, total: int, version: str, base: str = ""
    ) -> None:
        """`clients` are the numbers of the experiment's `fleet`; with data of their own, numbers are below `total`.

        `base`: the hash of what the network holds besides the numbers that are sent; every node builds it by itself.
        """
        self._mailbox, self._clients, self._fleet, self._total = mailbox, clients, fleet, total
        self._version, self._base = version, base
        self._queries: dict[str, int] = {}  # message id -> node, of queries without an answer
        self._queried: set[int] = set()
        self._connected: set[int] = set()
        self._looked = float("-inf")
        self._hosts: dict[int, list[int]] = {}  # number -> nodes that ever named it, in the order of their answers
        self.own_data: bool | None = None  # whether nodes have data of their own; None before the first answer
        self.own_tests = False  # whether some have test examples of their own
        self.reported: dict[int, ReportedClient] = {}  # by number

    @property
    def numbers(self) -> list[int]:
        """The numbers of the fleet's clients, in its order [N]."""
        return list(range(self._total)) if self.own_data else self._clients

    def look(self, at_once: bool = False) -> None:
        """Query new nodes and read the answers that have come; does not wait."""
        now = time.monotonic()
        if at_once or now - self._looked >= LOOK_EVERY:
            self._looked, self._connected = now, self._mailbox.nodes()
            for node in sorted(self._connected - self._queried):
                self._queried.add(node)
                if (message := self._mailbox.send("query", node, {"hello": self._version}, [])) is not None:
                    self._queries[message] = node
        for message, answer in self._mailbox.receive(list(self._queries)):
            node = self._queries.pop(message)
            try:
                if not isinstance(answer, NodeMessage):
                    raise Rejected("header", str(answer))
                self._take(node, answer.facts)
            except Rejected as why:
                log.warning("node %d takes no part: %s", node, why.text)

    def _take(self, node: int, facts: dict[str, Any]) -> None:
        """Enter a node's clients; `Rejected` if version or data do not fit the experiment."""
        if (why := facts.get("refused")) is not None:
            raise Rejected("header", str(why)[:500])
        if facts.get("fedloom") != self._version:
            raise Rejected("version", f"it has fedloom {facts.get('fedloom')!r}, and the server {self._version}.")
        if facts.get("base", "") != self._base:
            raise Rejected("base", "the frozen parts of its network are not the server's; give both the same files.")
        own_data, own_tests = fact(facts, "own", bool), fact(facts, "tests", bool)
        clients = [_read_client(row, self._fleet.labels.shape[1]) for row in fact(facts, "clients", list)]
        if self.own_data is not None and own_data != self.own_data:
            raise Rejected("report", "some nodes have data of their own and others those of the experiment.")
        places = {number: at for at, number in enumerate(self._clients)}
        for client in clients:
            at = client.number if own_data and client.number < self._total else places.get(client.number)
            if at is None:
                raise Rejected("client", f"client {client.number} is not one of the fleet.")
            ours = int(self._fleet.examples[at]), self._fleet.labels[at].tolist()
            if not own_data and (client.examples, client.labels) != ours:
                raise Rejected("report", f"its client {client.number} has other data than the experiment's.")
        self.own_data, self.own_tests = own_data, self.own_tests or own_tests
        for client in clients:
            others = self._hosts.setdefault(client.number, [])
            if self._connected & set(others):
                log.warning("client %d is hosted by two nodes; the first counts while it is connected", client.number)
            others.append(node)
            self.reported.setdefault(client.number, client)

    def present(self) -> dict[int, int]:
        """Place in the fleet -> node, of the clients whose node is connected."""
        nodes = {n: [node for node in hosts if node in self._connected] for n, hosts in self._hosts.items()}
        return {at: nodes[number][0] for at, number in enumerate(self.numbers) if nodes.get(number)}

    def missing(self) -> list[int]:
        """The numbers of the clients that no connected node hosts."""
        here = self.present()
        return [number for at, number in enumerate(self.numbers) if at not in here]

    def wait(self, seconds: float, tell: Callable[[str], None]) -> None:
        """Wait until every client is hosted, for `seconds` at most."""
        ends = time.monotonic() + seconds
        while True:
            self.look()
            if not self.missing():
                tell(f"all {len(self.numbers)} clients are there, on {len(set(self.present().values()))} nodes")
                return
            if time.monotonic() >= ends:
                break
            time.sleep(self._mailbox.interval)
        away = self.missing()
        shown = ", ".join(map(str, away[:20])) + (" ..." if len(away) > 20 else "")
        tell(f"{len(away)} of {len(self.numbers)} clients are not there after {seconds:g} s: {shown}")


def _read_client(row: Any, classes: int) -> ReportedClient:
    """A client of a node's answer, checked."""
    whole = isinstance(row, list) and len(row) == 3 and isinstance(row[2], list) and len(row[2]) == classes
    if not whole or any(type(n) is not int or not 0 <= n < 2**53 for n in (row[0], row[1], *row[2])) or row[1] < 1:
        raise Rejected("header", f"a client is {str(row)[:100]!r}; expected number, examples, {classes} label counts.")
    return ReportedClient(*row)
