"""Messages between server and nodes as Flower's records: facts as JSON, payloads as raw bytes that numpy never loads.

Flower sends every record, array and chunk of an array in a request of its own, of about a kilobyte. Small messages
therefore go into one record; large payloads go into arrays, which Flower cuts into chunks.
"""

from __future__ import annotations

import json
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from fedloom.codec import Rejected
from fedloom.flower.protocol.said import said

if TYPE_CHECKING:
    from flwr.app import RecordDict

FACTS, PAYLOADS, TEXT, STYPE = "fedloom.facts", "fedloom.payloads", "json", "fedloom-1"
LONGEST = 2**20  # characters of facts at most, besides those of items; longer text is refused unread
PER_ITEM = 2**12  # characters of one item's facts, on average
SMALL = 2**22  # payloads of at most so many bytes in all go into one record


class Payload(NamedTuple):
    """What goes to or comes from one client."""

    facts: dict[str, Any]
    data: bytes = b""  # a message of the codec; empty where nothing is sent

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return len(self.data) + len(_text(self.facts))


class NodeMessage(NamedTuple):
    """A message to or from a node: facts, and a payload for each client."""

    facts: dict[str, Any]
    payloads: list[Payload]

    @property
    def size(self) -> int:
        """Bytes of facts and payloads on the wire."""
        return len(_text(self.facts)) + sum(payload.size for payload in self.payloads)


def pack(message: NodeMessage) -> RecordDict:
    """Write a message as Flower's records."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    text = _text({"facts": message.facts, "items": [payload.facts for payload in message.payloads]})
    data = {str(place): payload.data for place, payload in enumerate(message.payloads) if payload.data}
    if sum(map(len, data.values())) <= SMALL:
        return RecordDict({FACTS: ConfigRecord({TEXT: text, **data})})
    arrays = {place: Array(dtype="uint8", shape=(len(d),), stype=STYPE, data=d) for place, d in data.items()}
    return RecordDict({FACTS: ConfigRecord({TEXT: text}), PAYLOADS: ArrayRecord(arrays)})


def unpack(content: RecordDict, items: int | None = None) -> NodeMessage:
    """Read a message from Flower's records; raise `Rejected` if they are not one, or have more than so many `items`.

    With None the sender is trusted with any number, as the server is.
    """
    from flwr.app import ArrayRecord, ConfigRecord

    facts, arrays = content.get(FACTS), content.get(PAYLOADS, ArrayRecord())
    if not isinstance(facts, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise Rejected("header", f"the message has records {said(sorted(map(str, content)))}; expected {FACTS}.")
    text, longest = facts.get(TEXT), inf if items is None else LONGEST + PER_ITEM * items
    if not isinstance(text, str) or len(text) > longest:
        raise Rejected("header", f"the message's facts are no text, or longer than {longest} characters.")
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise Rejected("header", f"the facts are not JSON: {type(problem).__name__}.") from None
    if not isinstance(read, dict) or not isinstance(read.get("facts"), dict) or not isinstance(read.get("items"), list):
        raise Rejected("header", "the facts are not those of a message: expected a dict 'facts' and a list 'items'.")
    if items is not None and len(read["items"]) > items:
        raise Rejected("header", f"the message has {len(read['items'])} items; expected {items} at most.")
    payloads = []
    for place, own in enumerate(read["items"]):
        if not isinstance(own, dict):
            raise Rejected("header", f"the facts of payload {place} are {type(own).__name__}; expected a dict.")
        array, data = arrays.get(str(place)), facts.get(str(place), b"")
        if not isinstance(data, bytes):
            raise Rejected("header", f"the data of payload {place} are {type(data).__name__}; expected bytes.")
        payloads.append(Payload(own, data if array is None else bytes(array.data)))
    return NodeMessage(read["facts"], payloads)


def fact(facts: dict[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    """One of the facts, checked to be of this kind; True is not a number."""
    value = facts.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise Rejected("header", f"'{name}' is {said(repr(value))}; expected {getattr(kind, '__name__', kind)}.")
    return value


def _text(facts: dict[str, Any]) -> str:
    """Facts as JSON."""
    return json.dumps(facts, separators=(",", ":"))
