"""How does a message travel in Flower's records? Facts as JSON, payloads as raw bytes; nothing is loaded by numpy."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from fedloom.codec import Rejected

if TYPE_CHECKING:
    from flwr.app import RecordDict

FACTS, PAYLOADS, TEXT, STYPE = "fedloom.facts", "fedloom.payloads", "json", "fedloom-1"
LONGEST = 2**24  # characters of facts that are looked at


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


def pack(parcel: Parcel) -> RecordDict:
    """As Flower's records."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    text = _text({"facts": parcel.facts, "items": [item.facts for item in parcel.items]})
    payloads = {
        str(place): Array(dtype="uint8", shape=(len(item.data),), stype=STYPE, data=item.data)
        for place, item in enumerate(parcel.items)
        if item.data
    }
    return RecordDict({FACTS: ConfigRecord({TEXT: text}), PAYLOADS: ArrayRecord(payloads)})


def unpack(content: RecordDict) -> Parcel:
    """From Flower's records; `Rejected` where they are not such a parcel."""
    from flwr.app import ArrayRecord, ConfigRecord

    facts, payloads = content.get(FACTS), content.get(PAYLOADS)
    if not isinstance(facts, ConfigRecord) or not isinstance(payloads, ArrayRecord):
        raise Rejected("header", f"the message has records {sorted(map(str, content))}; expected {FACTS}, {PAYLOADS}.")
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
        array = payloads.get(str(place))
        items.append(Item(own, b"" if array is None else bytes(array.data)))
    return Parcel(said["facts"], items)


def fact(facts: dict[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    """One of the facts, of this kind; True is no number."""
    value = facts.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise Rejected("header", f"'{name}' is {value!r}; expected {getattr(kind, '__name__', kind)}.")
    return value


def _text(facts: dict[str, Any]) -> str:
    return json.dumps(facts, separators=(",", ":"))
