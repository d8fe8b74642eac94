"""How does a message become bytes, and when is it one? A safetensors file with a header of known length.

    8 bytes    length of the header
    header     {"__metadata__":{"format":"fedloom-1","checksum":"...", ...},"values":{...}, ...} and spaces
    data       the tensors, one after the other in the header's order, without gaps

All numbers of the header are padded to one width, so that its length depends on names only and the size of a message
can be computed without writing it. The checksum is the CRC-32 of the header's length and of everything behind the
checksum itself. It finds damage (any burst of up to 32 bits, others but one in 2^32) at two to three gigabytes a
second, where blake2b manages less than one; it is no signature: who may speak is settled by the connection.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from fedloom.codec.frame import Entry
from fedloom.codec.rejected import Rejected
from fedloom.errors import BadExperiment

OPENING = b'{"__metadata__":{"format":"fedloom-'
VERSION = b"1"
CHECKSUM = b'","checksum":"'
BEFORE = 8 + len(OPENING) + len(VERSION) + len(CHECKSUM)  # bytes before the checksum
BEHIND = BEFORE + 8  # it has 8 hexadecimal digits
WIDTH = 10  # decimal digits: up to ten gigabytes
FORMATS = {"F64": "<f8", "I64": "<i8", "F32": "<f4", "F16": "<f2", "U16": "<u2", "I8": "i1", "U8": "u1"}


def header(fields: Mapping[str, str], entries: Sequence[Entry]) -> bytes:
    """The header with its length before it; eight zeros stand for the checksum."""
    facts = "".join(f',"{name}":"{value}"' for name, value in fields.items())
    text, start = "", 0
    for entry in entries:
        stop = start + entry.nbytes
        shape = ",".join(f"{size:{WIDTH}}" for size in entry.shape)
        text += f',"{entry.name}":{{"dtype":"{entry.dtype}","shape":[{shape}]'
        text += f',"data_offsets":[{start:{WIDTH}},{stop:{WIDTH}}]}}'
        start = stop
    if start >= 10**WIDTH:
        raise BadExperiment(f"a message of {start} bytes; expected less than {10**WIDTH}.")
    body = OPENING + VERSION + CHECKSUM + b"0" * 8 + f'"{facts}}}{text}}}'.encode("ascii")
    body += b" " * (-len(body) % 8)  # the data are aligned
    return len(body).to_bytes(8, "little") + body


def seal(head: bytes, arrays: Sequence[NDArray[np.generic]]) -> bytes:
    """The whole message."""
    views = [raw_bytes(array) for array in arrays]
    found = crc32(head[BEHIND:], crc32(head[:8]))
    for view in views:
        found = crc32(view, found)
    return b"".join([head[:BEFORE], b"%08x" % found, head[BEHIND:], *views])


def raw_bytes(array: NDArray[Any]) -> memoryview:
    """An array's bytes, lowest first."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).reshape(-1).view(np.uint8).data


def unseal(data: bytes | bytearray | memoryview, cap: int, longest: int) -> tuple[bytes, memoryview]:
    """The header with its length before it, and the data, if size, version and checksum are right."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise Rejected("size", f"expected bytes; got {type(data).__name__}.")
    view = memoryview(data)
    if view.format != "B" or view.ndim != 1 or not view.c_contiguous:
        raise Rejected("size", "expected bytes that lie one after the other.")
    if not BEHIND <= len(view) <= cap:
        raise Rejected("size", f"the message has {len(view)} bytes; expected {BEHIND} to {cap}.")
    length = int.from_bytes(view[:8], "little")
    if length > longest or 8 + length < BEHIND or 8 + length > len(view):
        raise Rejected("header", f"the header has {length} bytes; expected at most {longest} and all of them.")
    head = bytes(view[: 8 + length])
    if not head.startswith(OPENING, 8):
        raise Rejected("header", "the message does not begin as a fedloom message does.")
    if not head.startswith(VERSION + CHECKSUM, 8 + len(OPENING)):
        raise Rejected("version", f"the format is not version {VERSION.decode()}; both ends need the same fedloom.")
    found = b"%08x" % crc32(view[BEHIND:], crc32(head[:8]))
    if head[BEFORE:BEHIND] != found:
        raise Rejected("checksum", f"the message says {head[BEFORE:BEHIND]!r}, its bytes give {found!r}.")
    return head, view[8 + length :]


def parse(head: bytes) -> tuple[dict[str, str], dict[str, Any]]:
    """The header's facts, and what it says of each tensor (of any form)."""
    try:
        tensors = json.loads(head[8:].decode("ascii"))
    except (ValueError, RecursionError) as problem:
        raise Rejected("header", f"the header is not JSON: {type(problem).__name__}.") from None
    facts = tensors.pop("__metadata__", None) if isinstance(tensors, dict) else None
    if not isinstance(facts, dict) or not all(isinstance(value, str) for value in facts.values()):
        raise Rejected("header", "the header has no facts about the message.")
    return facts, tensors


def agree(head: bytes, fields: Mapping[str, str], tensors: Mapping[str, Any], entries: Sequence[Entry]) -> None:
    """Refuse a header that is not, byte for byte, the one that belongs to these entries."""
    if head[:BEFORE] + b"0" * 8 + head[BEHIND:] == header(fields, entries):
        return
    for entry in entries:
        said = tensors.get(entry.name)
        if isinstance(said, dict) and said.get("dtype") != entry.dtype:
            raise Rejected("dtype", f"'{entry.name}' is {said.get('dtype')!r}; expected {entry.dtype}.")
        if isinstance(said, dict) and said.get("shape") != list(entry.shape):
            raise Rejected("shape", f"'{entry.name}' has shape {said.get('shape')!r}; expected {list(entry.shape)}.")
    raise Rejected("header", "the header has names, offsets or spelling that the receiver does not expect.")


def arrays(data: memoryview, entries: Sequence[Entry]) -> dict[str, NDArray[Any]]:
    """The tensors as views of the data."""
    needed = sum(entry.nbytes for entry in entries)
    if needed != len(data):
        raise Rejected("size", f"the message has {len(data)} bytes of data; its header needs {needed}.")
    found, start = {}, 0
    for entry in entries:
        raw = data[start : start + entry.nbytes]
        found[entry.name] = np.frombuffer(raw, FORMATS[entry.dtype]).reshape(entry.shape)
        start += entry.nbytes
    return found
