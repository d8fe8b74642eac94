"""The nodes that are connected and the clients that they host."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any

from fedloom.codec import Rejected
from fedloom.flower.protocol.first_weights import START
from fedloom.flower.protocol.owners import Owner, owner_of
from fedloom.flower.protocol.records import NodeMessage, Payload
from fedloom.flower.protocol.said import said
from fedloom.flower.server.hello import Hello, ReportedClient, Terms, read_hello
from fedloom.flower.server.mailbox import Mailbox
from fedloom.runs.log_files import facts

log = logging.getLogger("fedloom")

LOOK_EVERY = 2.0  # seconds between looks for new nodes
ASK_AGAIN = 60.0  # seconds until a node is asked anew that did not say which clients it hosts


class Roster:
    """Which node hosts which client.

    Where the deployment says whose key is whose, a node hosts its own clients only; elsewhere the first node to name a
    client hosts it.

    Every node is asked when it is first seen, when it was away, and after anything went wrong with it (`doubt`).
    Whether nodes have data of their own is what most clients' nodes say until `settle`.
    """

    def __init__(
        self, mailbox: Mailbox, terms: Terms, changed_owners: Callable[[], tuple[Owner, ...]] = lambda: ()
    ) -> None:
        """`changed_owners`: whose key hosts which clients from now on; none if that is as before."""
        self._mailbox, self._terms, self._changed_owners = mailbox, terms, changed_owners
        self._queries: dict[str, int] = {}  # message id -> node, of queries without an answer
        self._queried: dict[int, float] = {}  # node -> when it was asked; nodes that are not here are asked next
        self._connected: set[int] = set()
        self._looked = float("-inf")
        self._hellos: dict[int, Hello] = {}  # node -> its answer, in the order of first answers
        self._life: dict[int, object] = {}  # node -> what its process called itself
        self._refused: dict[int, str] = {}  # node -> why it takes no part
        self._own_data: bool | None = None  # whether nodes have data of their own, once that is settled
        self._had_tests = False  # whether that was said when the run was begun
        self.reported: dict[int, ReportedClient] = {}  # clients with data of their own, as first reported, by number
        self.entered: Callable[[int], None] = lambda node: None  # called when a node's clients were entered
        self.looked: Callable[[], None] = lambda: None  # called after every look

    @property
    def own_data(self) -> bool | None:
        """Whether nodes have data of their own; None before the first answer."""
        if self._own_data is not None or not self._hellos:
            return self._own_data
        own, others = (
            len({client.number for one in self._hellos.values() if one.own_data == kind for client in one.clients})
            for kind in (True, False)
        )
        return own > others

    @property
    def own_tests(self) -> bool:
        """Whether some clients with data of their own have test examples."""
        return self._had_tests or any(one.own_tests for one in self._hellos.values() if one.own_data)

    @property
    def numbers(self) -> list[int]:
        """The numbers of the fleet's clients, in its order [N]."""
        return list(range(self._terms.total)) if self.own_data else self._terms.clients

    def name(self, node: int) -> str:
        """A node as the log calls it."""
        owner = owner_of(self._terms.owners, self._mailbox.keys.get(node))
        return f"node {node}" if owner is None else f"{owner.name} ({node})"

    def settle(self) -> None:
        """From now on nodes are refused whose data are not of the kind that most clients have."""
        self._own_data = self.own_data
        for node, hello in list(self._hellos.items()):
            if hello.own_data != self._own_data:
                self._refuse(node, _other_kind(hello))

    def recall(self, reported: list[ReportedClient], tests: bool) -> None:
        """The run was begun with these clients, who have data of their own."""
        self._own_data, self._had_tests = True, tests
        self.reported = {client.number: client for client in reported}

    def look(self, at_once: bool = False) -> None:
        """Query nodes that are new or in doubt, and read the answers that have come; does not wait."""
        now = time.monotonic()
        if at_once or now - self._looked >= LOOK_EVERY:
            self._looked, before, self._connected = now, self._connected, self._mailbox.nodes()
            if owners := self._changed_owners():
                self._terms = self._terms._replace(owners=owners)
                self._queried.clear()  # all are asked again
            if self._terms.owners and not self._connected <= self._mailbox.keys.keys():
                self._mailbox.learn_keys()
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
                self._refuse(node, why)
        self.looked()

    def counts(self) -> dict[str, int]:
        """Nodes by status; `away` where the deployment says which nodes there are."""
        hosting, connected = len(self._hellos.keys() & self._connected), len(self._connected)
        found = {"hosting": hosting, "idle": connected - hosting}
        return {**found, "away": max(0, len(self._terms.owners) - connected)} if self._terms.owners else found

    def _ask(self, node: int, now: float) -> None:
        """Ask a node which clients it hosts."""
        self._queried[node] = now
        facts = {"hello": self._terms.version}
        payloads = [Payload({START: True}, self._terms.start)] if self._terms.start else []
        if (message := self._mailbox.send("query", node, facts, payloads, items=self._terms.total)) is not None:
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
        self._hellos.pop(node, None)
        self._refused.pop(node, None)

    def _refuse(self, node: int, why: Rejected) -> None:
        """A node hosts nobody, and the log says why."""
        self._forget(node)
        text = self._refused[node] = said(why.text, 500)
        log.warning("%s takes no part: %s", self.name(node), text, extra=facts("no part", node=node, why=text))

    def _take(self, node: int, facts: dict[str, Any]) -> None:
        """Enter a node's clients; `Rejected` if version, code, key or data do not fit the run."""
        hello = read_hello(facts, self._terms, self._mailbox.keys.get(node))
        if self._own_data not in (None, hello.own_data):
            raise _other_kind(hello)
        for client in hello.clients if hello.own_data else ():
            before = self.reported.get(client.number, client)
            if before != client:
                raise Rejected(
                    "report",
                    f"its client {client.number} has {client.examples} examples, of labels {client.labels}, and had "
                    f"{before.examples}, of {before.labels}, when the run first saw it; a run goes on with the data "
                    "that it began with.",
                )
        self._enter(node, hello)
        self._life[node] = hello.life
        self.entered(node)

    def _enter(self, node: int, hello: Hello) -> None:
        """A node hosts these clients and no others; those that it hosts already keep their place."""
        named = {client.number for client in hello.clients}
        before = self._hellos.get(node)
        if before is not None and (gone := sorted({client.number for client in before.clients} - named)):
            log.warning("%s no longer hosts clients %s", self.name(node), _listed(gone))
        for other, one in self._hellos.items():
            both = named & {client.number for client in one.clients}
            if other != node and other in self._connected and both:
                log.warning(
                    "clients %s are hosted by two nodes; the first counts while it is connected", _listed(sorted(both))
                )
        self._hellos[node] = hello
        self._refused.pop(node, None)
        if hello.own_data:
            self.reported |= {client.number: client for client in hello.clients}

    @property
    def connected(self) -> frozenset[int]:
        """The nodes that Flower took to be connected at the last look."""
        return frozenset(self._connected)

    def present(self) -> dict[int, int]:
        """Place in the fleet -> node, of the clients whose node is connected."""
        hosts: dict[int, int] = {}  # number -> node
        kind = self.own_data
        for node, hello in self._hellos.items():
            if node in self._connected and hello.own_data == kind:
                for client in hello.clients:
                    hosts.setdefault(client.number, node)
        return {at: hosts[number] for at, number in enumerate(self.numbers) if number in hosts}

    def missing(self) -> list[int]:
        """The numbers of the clients that no connected node hosts."""
        here = self.present()
        return [number for at, number in enumerate(self.numbers) if at not in here]

    def wait(self, seconds: float, tell: Callable[[str], None]) -> None:
        """Wait until every client is hosted, or all nodes of the deployment were refused, for `seconds` at most."""
        ends = time.monotonic() + seconds
        while True:
            self.look()
            if not self.missing():
                tell(f"all {len(self.numbers)} clients are there, on {len(set(self.present().values()))} nodes")
                return
            all_refused = 0 < len(self._terms.owners) <= len(self._connected & self._refused.keys())
            if all_refused or time.monotonic() >= ends:
                break
            time.sleep(self._mailbox.interval)
        away = self.missing()
        tell(f"{len(away)} of {len(self.numbers)} clients are not there: {_listed(away)}")

    def lacking(self, share: float) -> str | None:
        """Why a run cannot begin with the clients that are there; None if `share` of the fleet is."""
        here, total = len(self.present()), len(self.numbers)
        wanted = max(1, math.ceil(share * total))
        if here >= wanted:
            return None
        away = f"; clients {_listed(self.missing())} are missing" if here else ""
        refused = "".join(f"; {self.name(node)} takes no part: {why}" for node, why in list(self._refused.items())[:3])
        return f"{here} of {total} clients are there, and {wanted} are needed{away}{refused}"


def _listed(numbers: list[int]) -> str:
    """Numbers for a message, the first twenty of them."""
    return str(numbers) if len(numbers) <= 20 else f"[{', '.join(map(str, numbers[:20]))}, ...]"


def _other_kind(hello: Hello) -> Rejected:
    """The refusal of a node whose data are of the other kind than those of most clients."""
    ours, theirs = ("the experiment's", "its own") if hello.own_data else ("the nodes' own", "the experiment's")
    return Rejected("report", f"its data are {theirs}, and those of this run are {ours}; give all nodes the same kind.")
