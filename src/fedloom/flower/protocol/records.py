"""How does a message travel in Flower's records? Facts as JSON, payloads as raw bytes; nothing is loaded by numpy.

Flower sends every record, array and chunk of an array by a request of its own, of about a kilobyte. So what is small
goes into one record; what is large into arrays, which Flower cuts into chunks.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from fedloom.codec import Rejected

if TYPE_CHECKING:
    from flwr.app import RecordDict

FACTS, PAYLOADS, TEXT, STYPE = "fedloom.facts", "fedloom.payloads", "json", "fedloom-1"
LONGEST = 2**24  # characters of facts that are looked at
SMALL = 2**22  # bytes of all payloads that go into one record


class Item(NamedTuple):
    """What is said to or by one client."""

    facts: dict[str, Any]
    data: bytes = b""  # a message of the codec; empty where nothing is sent

    @property
    def size(self) -> int:
        """Bytes of it on the wire."""
        return len(self.data) + len(_text(self.facts))


class Parcel(NamedTuple):
    """What is said to or by a node at once."""

    facts: dict[str, Any]
    items: list[Item]

    @property
    def size(self) -> int:
        """Bytes of all that is said."""
        return len(_text(self.facts)) + sum(item.size for item in self.items)


def pack(parcel: Parcel) -> RecordDict:
    """As Flower's records."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    text = _text({"facts": parcel.facts, "items": [item.facts for item in parcel.items]})
    payloads = {str(place): item.data for place, item in enumerate(parcel.items) if item.data}
    if sum(map(len, payloads.values())) <= SMALL:
        return RecordDict({FACTS: ConfigRecord({TEXT: text, **payloads})})
    arrays = {place: Array(dtype="uint8", shape=(len(d),), stype=STYPE, data=d) for place, d in payloads.items()}
    return RecordDict({FACTS: ConfigRecord({TEXT: text}), PAYLOADS: ArrayRecord(arrays)})


def unpack(content: RecordDict) -> Parcel:
    """From Flower's records; `Rejected` where they are not such a parcel."""
    from flwr.app import ArrayRecord, ConfigRecord

    facts, arrays = content.get(FACTS), content.get(PAYLOADS, ArrayRecord())
    if not isinstance(facts, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise Rejected("header", f"the message has records {sorted(map(str, content))}; expected {FACTS}.")
    text = facts.get(TEXT)
    if not isinstance(text, str) or len(text) > LONGEST:
        raise Rejected("header", "the message has no facts as text, or too many.")
    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise Rejected("header", f"the facts are not JSON: {type(problem).__name__}.") from None
    if not isinstance(said, dict) or not isinstance(said.get("facts"), dict) or not isinstance(said.get("items"), list):
        raise Rejected("header", "the facts are not those of a parcel.")
    items = []
    for place, own in enumerate(said["items"]):
        if not isinstance(own, dict):
            raise Rejected("header", f"what is said of client {place} of the message is no table.")
        array, data = arrays.get(str(place)), facts.get(str(place), b"")
        if not isinstance(data, bytes):
            raise Rejected("header", f"what client {place} of the message sends is no bytes.")
        items.append(Item(own, data if array is None else bytes(array.data)))
    return Parcel(said["facts"], items)


def fact(facts: dict[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    """One of the facts, of this kind; True is no number."""
    value = facts.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise Rejected("header", f"'{name}' is {value!r}; expected {getattr(kind, '__name__', kind)}.")
    return value


def _text(facts: dict[str, Any]) -> str:
    return json.dumps(facts, separators=(",", ":"))
