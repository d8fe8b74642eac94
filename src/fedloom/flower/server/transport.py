"""What does Flower itself put on the wire? Its requests, connections and looks for messages, reckoned, not counted.

A node of Flower 1.41.0 asks over HTTP/1.1 and TLS 1.3, and every request carries the node's public key, a time and a
signature. For one message and its answer it asks for the message, for each of its objects, confirms, announces the
answer and sends each of its objects: nine requests where both are one record. Without a message it looks again after
three seconds, and now and then it says that it is alive.

Every number below was read off the requests and answers of one node (FedAvg on digits, three rounds, TLS and an ECDSA
key on P-384 as `fedloom trial` makes them), seen in the node's HTTP library before TLS; records and handshakes of TLS
are what was left on the socket. Other keys, certificates and releases of Flower change them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from fedloom.flower.protocol.records import SMALL, NodeMessage

CHUNK = 5 * 2**20  # bytes of an array that Flower sends at once
RECORD, RECORD_HEAD = 2**14, 22  # bytes of a record of TLS, and what it adds
LOOK_EVERY = 3.03  # seconds between looks for a message: it sleeps 3
BEAT_EVERY = 20.0  # seconds between signs of life, in the mean
KEPT = 5.0  # seconds without use after which both ends drop a connection


class Bytes(NamedTuple):
    """Bytes of a node's link."""

    up: float = 0.0  # to the link
    down: float = 0.0

    def plus(self, other: Bytes, times: float = 1.0) -> Bytes:
        """Both together."""
        return Bytes(self.up + times * other.up, self.down + times * other.down)


REQUEST = Bytes(886, 172)  # heads of HTTP, signature and key, and TLS, whatever is asked
LOOK = Bytes(898, 150)  # nothing was there
BEAT = Bytes(913, 174)
CONNECTION = Bytes(597, 1444)  # handshake with the link's certificate, and the end
MESSAGE = Bytes(326, 246)  # both messages' own facts (from, to, when) and the names of what is confirmed
PULLED = Bytes(89, 186)  # an object of a message: its name twice, and its own head
PUSHED = Bytes(332, 68)  # one of an answer
APP = Bytes(1884, 3108)  # once a run: what it is, and its app


class Load(NamedTuple):
    """What a message is made of."""

    objects: int  # that Flower sends one by one: the message, its records, arrays, and chunks of arrays
    size: int  # bytes of payloads and facts

    @classmethod
    def of(cls, message: NodeMessage) -> Load:
        """As `fedloom.flower.protocol.records.pack` packs it."""
        payloads = [len(payload.data) for payload in message.payloads if payload.data]
        arrays = 0 if sum(payloads) <= SMALL else 1 + sum(1 + math.ceil(size / CHUNK) for size in payloads)
        return cls(3 + arrays, message.size)


def exchange(asked: Load, answer: Load) -> Bytes:
    """A message and its answer, all that goes over the link for them while a connection is open."""
    total = MESSAGE.plus(REQUEST, 3 + asked.objects + answer.objects)
    total = total.plus(PULLED, asked.objects).plus(PUSHED, answer.objects)
    return total.plus(Bytes(answer.size, asked.size), 1 + RECORD_HEAD / RECORD)


def waiting(seconds: float, work: float = 0.0) -> Bytes:
    """A node that is connected for so long, and in `work` of these seconds looks for no message."""
    looks = max(0.0, seconds - work) / LOOK_EVERY
    return Bytes().plus(LOOK, looks).plus(BEAT, seconds / BEAT_EVERY)


def connections(idle: float, work: float) -> int:
    """How many are opened for an exchange that comes `idle` seconds after the last and takes `work` seconds.

    Looks keep one open. Objects go over two; both are dropped where the work takes long.
    """
    return (idle > KEPT) + 2 * (work > KEPT)
