"""What a node says when it is asked which clients it hosts, and the terms on which it takes part."""

from __future__ import annotations

from typing import Any, NamedTuple

from fedloom.codec import Rejected
from fedloom.core.types import Fleet
from fedloom.flower.protocol.code import check_code
from fedloom.flower.protocol.owners import Owner, check_owner
from fedloom.flower.protocol.records import fact
from fedloom.flower.protocol.said import said


class Terms(NamedTuple):
    """What a node must have in common with the server."""

    clients: list[int]  # the numbers of the fleet's clients; with data of their own, numbers are below `total`
    fleet: Fleet
    total: int
    version: str  # of fedloom
    code: dict[str, str]  # hashes of the files that train
    base: str = ""  # hash of what the network holds besides the numbers that are sent; nodes build it by themselves
    owners: tuple[Owner, ...] = ()  # whose key hosts which clients; none: every node may host any client
    start: bytes = b""  # the weights that the run began with, where nodes need them and cannot build them


class ReportedClient(NamedTuple):
    """One of a node's clients, as the node reports it."""

    number: int  # in the partition
    examples: int
    labels: list[int]  # examples of each label


class Hello(NamedTuple):
    """A node's answer, which fits the terms."""

    own_data: bool  # whether its clients have data of their own
    own_tests: bool  # whether these have test examples of their own
    clients: list[ReportedClient]
    life: object  # what its process called itself


def read_hello(facts: dict[str, Any], terms: Terms, key: str | None) -> Hello:
    """Read the answer of the node with this key; `Rejected` if it does not fit the terms."""
    if (why := facts.get("refused")) is not None:
        raise Rejected("header", str(why)[:500])
    if facts.get("fedloom") != terms.version:
        theirs = said(repr(facts.get("fedloom")))
        raise Rejected("version", f"it has fedloom {theirs}, and the server {terms.version}.")
    check_code(facts.get("code"), terms.code)
    if facts.get("base", "") != terms.base:
        raise Rejected("base", "the frozen parts of its network are not the server's; give both the same files.")
    own_data, own_tests = fact(facts, "own", bool), fact(facts, "tests", bool)
    rows = fact(facts, "clients", list)
    if len(rows) > terms.total:
        raise Rejected("header", f"it names {len(rows)} clients; the experiment has {terms.total}.")
    clients = [_read_client(row, terms.fleet.labels.shape[1]) for row in rows]
    if terms.owners:
        check_owner(terms.owners, key, [client.number for client in clients])
    places = {number: at for at, number in enumerate(terms.clients)}
    for client in clients:
        at = client.number if own_data and client.number < terms.total else places.get(client.number)
        if at is None:
            raise Rejected("client", f"client {client.number} is not one of the fleet.")
        if not own_data and client != (client.number, int(terms.fleet.examples[at]), terms.fleet.labels[at].tolist()):
            raise Rejected("report", f"its client {client.number} has other data than the experiment's.")
    return Hello(own_data, own_tests, clients, facts.get("life"))


def _read_client(row: Any, classes: int) -> ReportedClient:
    """A client of a node's answer, checked."""
    whole = isinstance(row, list) and len(row) == 3 and isinstance(row[2], list) and len(row[2]) == classes
    if not whole or any(type(n) is not int or not 0 <= n < 2**53 for n in (row[0], row[1], *row[2])) or row[1] < 1:
        raise Rejected("header", f"a client is {said(row, 100)}; expected number, examples, {classes} label counts.")
    return ReportedClient(*row)
