"""Bytes that Flower itself puts on a node's link, reckoned from messages and time because the server cannot count them.

The server app holds no node's connection. They end in the SuperLink, a process of its own that may run on another
machine. Kernels count by connection (`ss -ti`), but no connection names its node, nodes behind one address look alike,
and the count is gone when a connection closes, after 5 seconds without use. The port also serves the server app, the
SuperLink's own helper, the operator's commands and other runs: on a link with two nodes, helper and server app had put
0.44 and 1.08 MB on it while the nodes' open connections had carried 0.21 MB. On the node's side another process than
the app holds the connection, and an interface's counters include all else that the machine does. Only something
between one node and the link can count: `fedloom trial` has a relay there, and its counts are what this reckoning is
tested against.

A node of Flower 1.41.0 sends requests over HTTP/1.1 and TLS 1.3, each with the node's public key, a time and a
signature. For one message and its answer it asks for the message, asks for each of its objects, confirms, announces
the answer and sends each of its objects: nine requests where both are one record. Without a message it looks again
soon at first and every three seconds in the end (`fedloom.flower.protocol.pace`), and every 20 seconds or so it sends
a heartbeat.

The constants were read off the requests and answers of one node (FedAvg on digits, three rounds, TLS and an ECDSA key
on P-384 as `fedloom trial` makes them), in the node's HTTP library before TLS; TLS records and handshakes are the rest
on the socket. Other keys, certificates and releases of Flower change them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple

from fedloom.flower.protocol.pace import LONGEST, looks_within
from fedloom.flower.protocol.records import SMALL, NodeMessage

CHUNK = 5 * 2**20  # bytes of an array that Flower sends at once
RECORD, RECORD_HEAD = 2**14, 22  # bytes of a TLS record, and what TLS adds to it
BEAT_EVERY = 20.0  # seconds between heartbeats, on average
IDLE = 5.0  # seconds without use after which both ends close a connection


class LinkBytes(NamedTuple):
    """Bytes on a node's link, up to the SuperLink and down from it."""

    up: float = 0.0
    down: float = 0.0

    def plus(self, other: LinkBytes, times: float = 1.0) -> LinkBytes:
        """The sum of both, the other `times` times."""
        return LinkBytes(self.up + times * other.up, self.down + times * other.down)


REQUEST = LinkBytes(886, 172)  # HTTP heads, signature, key and TLS of any request
LOOK = LinkBytes(898, 150)  # a request for a message, when there is none
BEAT = LinkBytes(913, 174)  # a heartbeat
CONNECTION = LinkBytes(597, 1444)  # handshake with the link's certificate, and the end
MESSAGE = LinkBytes(326, 246)  # metadata of a message and its answer, and the names of confirmed objects
PULLED = LinkBytes(89, 186)  # for each object of a message: its name twice, and its head
PUSHED = LinkBytes(332, 68)  # for each object of an answer
APP = LinkBytes(1884, 3108)  # once in a run: its description and its app


class Load(NamedTuple):
    """How much Flower sends for one message."""

    objects: int  # sent one by one: the message, its records, arrays, and chunks of arrays
    size: int  # bytes of payloads and facts

    @classmethod
    def of(cls, message: NodeMessage) -> Load:
        """As `fedloom.flower.protocol.records.pack` writes the message."""
        payloads = [len(payload.data) for payload in message.payloads if payload.data]
        arrays = 0 if sum(payloads) <= SMALL else 1 + sum(1 + math.ceil(size / CHUNK) for size in payloads)
        return cls(3 + arrays, message.size)


def exchange(sent: Load, answer: Load) -> LinkBytes:
    """A message and its answer, all that they put on the link while a connection is open."""
    total = MESSAGE.plus(REQUEST, 3 + sent.objects + answer.objects)
    total = total.plus(PULLED, sent.objects).plus(PUSHED, answer.objects)
    return total.plus(LinkBytes(answer.size, sent.size), 1 + RECORD_HEAD / RECORD)


def waiting(seconds: float, busy: float = 0.0, since: float | None = None) -> LinkBytes:
    """A node that is connected for `seconds`; for the last `busy` of these it does not look for messages.

    They begin `since` seconds after its last answer; None if it has not answered yet.
    """
    idle = max(0.0, seconds - busy)
    looks = idle / LONGEST if since is None else looks_within(since + idle) - looks_within(since)
    return LinkBytes().plus(LOOK, looks).plus(BEAT, seconds / BEAT_EVERY)


def connections(idle: float, busy: float) -> int:
    """Connections opened for an exchange that comes `idle` seconds after the last and takes `busy` seconds.

    Looks keep one open. Objects go over two, and both close while the node is busy for long.
    """
    return (idle > IDLE) + 2 * (busy > IDLE)


class Meter:
    """Bytes that nodes' links have carried and that no round's table has yet; all times are seconds of one clock."""

    def __init__(self, began: float) -> None:
        """Nodes that are connected when nodes are first seen have been connected since `began`."""
        self._began: float | None = began
        self._carried: defaultdict[int, LinkBytes] = defaultdict(LinkBytes)
        self._until: dict[int, float] = {}  # the time up to which a node's waiting is counted
        self._answered: dict[int, float] = {}  # the time of its last answer

    def seen(self, nodes: set[int], now: float) -> None:
        """These nodes are connected; others do not wait."""
        self._until |= {node: now for node in self._until if node not in nodes}
        for node in nodes:
            self._until.setdefault(node, now if self._began is None else self._began)
        self._began = None

    def exchange(self, node: int, sent: Load, answer: Load, busy: float, now: float) -> None:
        """A node has answered, and reports that it was busy for so many seconds; no more than have passed count."""
        since = self._until.get(node, now)
        busy = min(max(0.0, busy), now - since)
        idle = now - busy - self._answered.get(node, float("-inf"))
        self.add(node, exchange(sent, answer).plus(CONNECTION, connections(idle, busy)))
        self.add(node, waiting(now - since, busy, self._since(node)))
        if node not in self._answered:
            self.add(node, APP)
        self._until[node] = self._answered[node] = now

    def _since(self, node: int) -> float | None:
        """Seconds from a node's last answer to the time up to which its waiting is counted."""
        answered = self._answered.get(node)
        return None if answered is None else max(0.0, self._until.get(node, answered) - answered)

    def add(self, node: int, carried: LinkBytes) -> None:
        """Count more bytes on a node's link; below zero those that a table has already."""
        self._carried[node] = self._carried[node].plus(carried)

    def take(self, node: int, now: float) -> LinkBytes:
        """All that a node's link has carried since the last call."""
        self.add(node, waiting(now - self._until.get(node, now), since=self._since(node)))
        self._until[node] = now
        return self._carried.pop(node)
