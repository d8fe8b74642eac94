"""The container of a message: a safetensors file with a header of known length.

    8 bytes    length of the header
    header     {"__metadata__":{"format":"fedloom-1","checksum":"...", ...},"values":{...}, ...} and spaces
    data       the tensors in the header's order, without gaps

All numbers in the header are padded to one width, so that its length depends on names only and the size of a message
can be computed without encoding it. The checksum is the CRC-32 of the header's length and of all that follows the
checksum. It detects damage (all bursts of at most 32 bits, all others but one in 2^32) at two to three gigabytes per
second, where blake2b reaches less than one. It is no signature: senders are authenticated by the connection.
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
AFTER = BEFORE + 8  # bytes up to the end of its 8 hexadecimal digits
WIDTH = 10  # decimal digits: at most ten gigabytes
FORMATS = {"F64": "<f8", "I64": "<i8", "F32": "<f4", "F16": "<f2", "U16": "<u2", "I8": "i1", "U8": "u1"}


def header(fields: Mapping[str, str], entries: Sequence[Entry]) -> bytes:
    """The header, preceded by its length, with eight zeros in place of the checksum."""
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
    body += b" " * (-len(body) % 8)  # aligns the data
    return len(body).to_bytes(8, "little") + body


def seal(head: bytes, arrays: Sequence[NDArray[np.generic]]) -> bytes:
    """The whole message, with its checksum."""
    views = [raw_bytes(array) for array in arrays]
    found = crc32(head[AFTER:], crc32(head[:8]))
    for view in views:
        found = crc32(view, found)
    return b"".join([head[:BEFORE], b"%08x" % found, head[AFTER:], *views])


def raw_bytes(array: NDArray[Any]) -> memoryview:
    """An array's bytes, in little-endian order."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).reshape(-1).view(np.uint8).data


def unseal(data: bytes | bytearray | memoryview, cap: int, longest: int) -> tuple[bytes, memoryview]:
    """The header, preceded by its length, and the data; raise `Rejected` if size, version or checksum is wrong."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise Rejected("size", f"expected bytes; got {type(data).__name__}.")
    view = memoryview(data)
    if view.format != "B" or view.ndim != 1 or not view.c_contiguous:
        raise Rejected("size", "expected contiguous bytes.")
    if not AFTER <= len(view) <= cap:
        raise Rejected("size", f"the message has {len(view)} bytes; expected {AFTER} to {cap}.")
    length = int.from_bytes(view[:8], "little")
    if length > longest or 8 + length < AFTER or 8 + length > len(view):
        raise Rejected("header", f"the header has {length} bytes; expected at most {longest} and all of them.")
    head = bytes(view[: 8 + length])
    if not head.startswith(OPENING, 8):
        raise Rejected("header", "the message does not start like a message of fedloom.")
    if not head.startswith(VERSION + CHECKSUM, 8 + len(OPENING)):
        raise Rejected("version", f"the format is not version {VERSION.decode()}; both ends need the same fedloom.")
    found = b"%08x" % crc32(view[AFTER:], crc32(head[:8]))
    if head[BEFORE:AFTER] != found:
        raise Rejected("checksum", f"the message has {head[BEFORE:AFTER]!r}, its bytes give {found!r}.")
    return head, view[8 + length :]


def parse(head: bytes) -> tuple[dict[str, str], dict[str, Any]]:
    """The header's facts about the message, and its entries of tensors, unchecked."""
    try:
        tensors = json.loads(head[8:].decode("ascii"))
    except (ValueError, RecursionError) as problem:
        raise Rejected("header", f"the header is not JSON: {type(problem).__name__}.") from None
    facts = tensors.pop("__metadata__", None) if isinstance(tensors, dict) else None
    if not isinstance(facts, dict) or not all(isinstance(value, str) for value in facts.values()):
        raise Rejected("header", "the header has no facts about the message.")
    return facts, tensors


def check_header(head: bytes, fields: Mapping[str, str], tensors: Mapping[str, Any], entries: Sequence[Entry]) -> None:
    """Raise `Rejected` if the header is not, byte for byte, the one of these entries."""
    if head[:BEFORE] + b"0" * 8 + head[AFTER:] == header(fields, entries):
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
