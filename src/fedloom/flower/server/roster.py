"""The nodes that are connected and the clients that they host; the first node to name a client hosts it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from fedloom.codec import Rejected
from fedloom.core.types import Fleet
from fedloom.flower.protocol.records import NodeMessage, fact
from fedloom.flower.protocol.said import said
from fedloom.flower.server.mailbox import Mailbox

log = logging.getLogger("fedloom")

LOOK_EVERY = 2.0  # seconds between looks for new nodes
ASK_AGAIN = 60.0  # seconds until a node is asked anew that did not say which clients it hosts


class ReportedClient(NamedTuple):
    """One of a node's clients, as the node reports it."""

    number: int  # in the partition
    examples: int
    labels: list[int]  # examples of each label


class Roster:
    """Which node hosts which client. The first node that answers decides whether nodes have data of their own.

    Every node is asked when it is first seen, when it was away, and after anything went wrong with it (`doubt`).
    """

    def __init__(
        self, mailbox: Mailbox, clients: list[int], fleet: Fleet, total: int, version: str, base: str = ""
    ) -> None:
        """`clients` are the numbers of the experiment's `fleet`; with data of their own, numbers are below `total`.

        `base`: the hash of what the network holds besides the numbers that are sent; every node builds it by itself.
        """
        self._mailbox, self._clients, self._fleet, self._total = mailbox, clients, fleet, total
        self._version, self._base = version, base
        self._queries: dict[str, int] = {}  # message id -> node, of queries without an answer
        self._queried: dict[int, float] = {}  # node -> when it was asked; nodes that are not here are asked next
        self._connected: set[int] = set()
        self._looked = float("-inf")
        self._hosts: dict[int, list[int]] = {}  # number -> nodes that name it, in the order of their answers
        self._life: dict[int, object] = {}  # node -> what its process called itself
        self.own_data: bool | None = None  # whether nodes have data of their own; None before the first answer
        self.own_tests = False  # whether some have test examples of their own
        self.reported: dict[int, ReportedClient] = {}  # by number; what a client's node first said of it
        self.entered: Callable[[int], None] = lambda node: None  # called when a node's clients were entered

    @property
    def numbers(self) -> list[int]:
        """The numbers of the fleet's clients, in its order [N]."""
        return list(range(self._total)) if self.own_data else self._clients

    def look(self, at_once: bool = False) -> None:
        """Query nodes that are new or in doubt, and read the answers that have come; does not wait."""
        now = time.monotonic()
        if at_once or now - self._looked >= LOOK_EVERY:
            self._looked, before, self._connected = now, self._connected, self._mailbox.nodes()
            for node in before - self._connected:
                self._queried.pop(node, None)
                self._forget(node)  # it may come back with other clients
            waiting = set(self._queries.values())
            for node in sorted(self._connected):
                if node not in self._queried or (node in waiting and now - self._queried[node] >= ASK_AGAIN):
                    self._ask(node, now)
        for message, answer in self._mailbox.receive(list(self._queries)):
            node = self._queries.pop(message)
            try:
                if not isinstance(answer, NodeMessage):
                    raise Rejected("header", str(answer))
                self._take(node, answer.facts)
            except Rejected as why:
                self._forget(node)
                log.warning("node %d takes no part: %s", node, said(why.text, 500))

    def _ask(self, node: int, now: float) -> None:
        """Ask a node which clients it hosts."""
        self._queried[node] = now
        facts = {"hello": self._version}
        if (message := self._mailbox.send("query", node, facts, [], items=len(self.numbers))) is not None:
            self._queries[message] = node

    def doubt(self, node: int) -> None:
        """Something went wrong with a node: it is asked again at the next look, and keeps its clients until then."""
        self._queried.pop(node, None)

    def hear(self, node: int, facts: dict[str, Any]) -> bool:
        """Whether the node that sent these facts is still the process that said which clients it hosts.

        If it is not, it is in doubt: a node may be killed and started again between two looks.
        """
        same = node not in self._life or self._life[node] == facts.get("life")
        if not same:
            self.doubt(node)
        return same

    def _forget(self, node: int) -> None:
        """A node hosts nobody, until it says so again."""
        for nodes in self._hosts.values():
            if node in nodes:
                nodes.remove(node)

    def _take(self, node: int, facts: dict[str, Any]) -> None:
        """Enter a node's clients; `Rejected` if version or data do not fit the experiment."""
        if (why := facts.get("refused")) is not None:
            raise Rejected("header", str(why)[:500])
        if facts.get("fedloom") != self._version:
            raise Rejected("version", f"it has fedloom {facts.get('fedloom')!r}, and the server {self._version}.")
        if facts.get("base", "") != self._base:
            raise Rejected("base", "the frozen parts of its network are not the server's; give both the same files.")
        own_data, own_tests = fact(facts, "own", bool), fact(facts, "tests", bool)
        rows = fact(facts, "clients", list)
        if len(rows) > self._total:
            raise Rejected("header", f"it names {len(rows)} clients; the experiment has {self._total}.")
        clients = [_read_client(row, self._fleet.labels.shape[1]) for row in rows]
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
            before = self.reported.get(client.number, client)
            if before != client:
                raise Rejected(
                    "report",
                    f"its client {client.number} has {client.examples} examples, of labels {client.labels}, and had "
                    f"{before.examples}, of {before.labels}, when the run first saw it; a run goes on with the data "
                    "that it began with.",
                )
        self.own_data, self.own_tests = own_data, self.own_tests or own_tests
        self._enter(node, clients)
        self._life[node] = facts.get("life")
        self.entered(node)

    def _enter(self, node: int, clients: list[ReportedClient]) -> None:
        """A node hosts these clients and no others; those that it hosts already keep their place."""
        named = {client.number for client in clients}
        before = {number for number, nodes in self._hosts.items() if node in nodes}
        if gone := sorted(before - named):
            log.warning("node %d no longer hosts clients %s", node, _listed(gone))
        for number in gone:
            self._hosts[number].remove(node)
        for client in clients:
            others = self._hosts.setdefault(client.number, [])
            if node not in others:
                if self._connected & set(others):
                    log.warning(
                        "client %d is hosted by two nodes; the first counts while it is connected", client.number
                    )
                others.append(node)
            self.reported.setdefault(client.number, client)

    @property
    def connected(self) -> frozenset[int]:
        """The nodes that Flower took to be connected at the last look."""
        return frozenset(self._connected)

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
        tell(f"{len(away)} of {len(self.numbers)} clients are not there after {seconds:g} s: {_listed(away)}")

    def lacking(self, share: float) -> str | None:
        """Why a run cannot begin with the clients that are there; None if `share` of the fleet is."""
        here, total = len(self.present()), len(self.numbers)
        wanted = max(1, math.ceil(share * total))
        if here >= wanted:
            return None
        away = f"; clients {_listed(self.missing())} are missing" if here else ""
        return f"{here} of {total} clients are there, and {wanted} are needed{away}"


def _listed(numbers: list[int]) -> str:
    """Numbers for a message, the first twenty of them."""
    return str(numbers) if len(numbers) <= 20 else f"[{', '.join(map(str, numbers[:20]))}, ...]"


def _read_client(row: Any, classes: int) -> ReportedClient:
    """A client of a node's answer, checked."""
    whole = isinstance(row, list) and len(row) == 3 and isinstance(row[2], list) and len(row[2]) == classes
    if not whole or any(type(n) is not int or not 0 <= n < 2**53 for n in (row[0], row[1], *row[2])) or row[1] < 1:
        raise Rejected("header", f"a client is {said(row, 100)}; expected number, examples, {classes} label counts.")
    return ReportedClient(*row)
