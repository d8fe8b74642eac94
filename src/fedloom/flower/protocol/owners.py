"""Which node hosts which clients, by its key: what a deployment says, and what a server holds nodes to."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple

from fedloom.codec import Rejected
from fedloom.errors import BadExperiment
from fedloom.flower.protocol.assignment import format_ranges, parse_ranges


class Owner(NamedTuple):
    """A node of a deployment."""

    name: str
    key: str  # the fingerprint of its public key
    clients: frozenset[int]  # numbers in the partition


def write_owners(owners: Iterable[Owner]) -> str:
    """The nodes as JSON text, for a run config."""
    return json.dumps({one.name: {"key": one.key, "clients": format_ranges(one.clients)} for one in owners})


def read_owners(text: str) -> tuple[Owner, ...]:
    """The nodes; none if the text is empty, and then nodes may host whom they like."""
    try:
        read = json.loads(text or "{}")
        found = tuple(
            Owner(str(name), str(one["key"]), frozenset(parse_ranges(one["clients"]))) for name, one in read.items()
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise BadExperiment(
            "run config: 'nodes' cannot be read; expected JSON such as "
            '{"node-0": {"key": "SHA256:...", "clients": "0-4,7"}}, as `fedloom deploy` writes it.'
        ) from problem
    for place, one in enumerate(found):
        for other in found[:place]:
            if one.key == other.key or one.clients & other.clients:
                both = "key" if one.key == other.key else f"client {min(one.clients & other.clients)}"
                raise BadExperiment(f"run config: {other.name} and {one.name} in 'nodes' have the same {both}.")
    return found


def owner_of(owners: Iterable[Owner], key: str | None) -> Owner | None:
    """The node with this key."""
    return next((one for one in owners if one.key == key), None)


def check_owner(owners: tuple[Owner, ...], key: str | None, clients: Iterable[int]) -> None:
    """Refuse a node with a key that is not of the deployment, or that names clients of another one."""
    owner = owner_of(owners, key)
    if owner is None:
        raise Rejected("client", f"its key {key} is none of the run's; they are in 'nodes' of the run config.")
    foreign = set(clients) - owner.clients
    if foreign:
        whose = [one.name for one in owners if one.clients & foreign] or ["no node"]
        raise Rejected(
            "client",
            f"it names clients {format_ranges(foreign)}, who belong to {', '.join(whose)}; it may host "
            f"{format_ranges(owner.clients)}.",
        )


def fingerprint(public: bytes) -> str:
    """The fingerprint of a public key in OpenSSH's or PEM format, as `ssh-keygen -l` shows it."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

    if public.startswith(b"-----"):
        public = load_pem_public_key(public).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return "SHA256:" + b64encode(sha256(b64decode(public.split()[1])).digest()).decode().rstrip("=")
