"""Messages to send, ways to spoil them, and a checksum for what was spoilt."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from fedloom.codec import AnyKeep, AnyMask, Expected, Frame, Message, ModelPart, Range, Stamp, base_hash, encode
from fedloom.codec.container import AFTER, BEFORE
from fedloom.codec.number_formats import DTYPES
from fedloom.layout import layout_of
from fedloom.neurons.trace import neuron_map

KINDS = tuple(DTYPES)
PARTS = ("all", "neurons", "rows", "rows+outputs", "bits", "gaps", "asked")
REPORT = {"examples": Range(1, 10_000, whole=True), "loss": Range(0, 1e6)}
KEY = torch.tensor(123456789)


@cache
def frame(width: int = 20, extras: bool = True) -> Frame:
    """A dense net of inputs-width-9-5 with one number, one vector and one model-sized extra."""
    module = nn.Sequential(nn.Linear(11, width), nn.ReLU(), nn.Linear(width, 9), nn.ReLU(), nn.Linear(9, 5))
    layout = layout_of(module)
    given = {"steps": (torch.int64, ()), "centre": (torch.float32, (2, 3)), "control": (torch.float32, (layout.total,))}
    return Frame(layout, neuron_map(module, torch.zeros(2, 11)), given if extras else {}, REPORT if extras else {})


def generator(seed: int) -> torch.Generator:
    """A stream for test data."""
    return torch.Generator().manual_seed(seed)


def numbers(seed: int, *shape: int) -> Tensor:
    """Values over many orders of magnitude, with zeros of both signs and subnormal numbers."""
    random = generator(seed)
    values = torch.randn(shape, generator=random) * 10.0 ** torch.randint(-6, 4, shape, generator=random)
    odd = torch.tensor([0.0, -0.0, 1e-41, -3e-45])
    return torch.where(
        torch.rand(shape, generator=random) < 0.1, odd[torch.randint(0, 4, shape, generator=random)], values
    )


def bools(seed: int, share: float, *shape: int) -> Tensor:
    """A random mask or keep."""
    return torch.rand(shape, generator=generator(seed)) < share


def part_of(word: str, frame: Frame, seed: int, share: float = 0.5) -> ModelPart:
    """A random part that travels in this way."""
    assert frame.neurons
    if word == "all":
        return ModelPart()
    if word in ("neurons", "rows"):
        return ModelPart(keep=bools(seed, share, frame.neurons.size), rows=word == "rows")
    if word == "rows+outputs":
        return ModelPart(keep=bools(seed, share, frame.neurons.full_size), rows=True)
    share = 0.02 if word == "gaps" else max(share, 0.2)
    return ModelPart(mask=bools(seed, share, frame.total), known=word == "asked")


def policy_of(word: str, part: ModelPart) -> ModelPart | AnyKeep | AnyMask:
    """The least strict policy for a part that travels in this way."""
    if word in ("all", "asked"):
        return part
    if part.keep is None:
        return AnyMask(1.0)
    return AnyKeep(1.0, part.rows, outputs=word.endswith("+outputs"))


class Parcel(NamedTuple):
    """A message, what was put into it and what its receiver expects."""

    data: bytes
    expected: Expected
    values: Tensor
    part: ModelPart
    given: dict[str, Any]  # kind, extras, report, key

    def again(self, **changes: Any) -> bytes:
        """The message written with other stamps, frames, parts, values, extras or reports."""
        words: dict[str, Any] = {
            "frame": self.expected.frame,
            "stamp": self.expected.stamp,
            "values": self.values,
            "part": self.part,
            **self.given,
        }
        return encode(**{**words, **changes})


@cache
def parcel(word: str = "neurons", kind: Any = "float32", seed: int = 0, width: int = 20, extras: bool = True) -> Parcel:
    """A valid message."""
    shape = frame(width, extras)
    values = numbers(seed, shape.total)
    part = part_of(word, shape, seed + 1)
    stamp = Stamp("a run", 3, 7, base_hash(numbers(seed + 2, shape.total)))
    given: dict[str, Any] = {"kind": kind, "key": KEY}
    if extras:
        given["report"] = {"loss": 0.25, "examples": 60}
        given["extras"] = {
            "steps": torch.tensor(12),
            "centre": numbers(seed + 3, 2, 3),
            "control": numbers(seed + 4, shape.total),
        }
    expected = Expected(shape, stamp, policy_of(word, part), (kind,))
    return Parcel(encode(shape, stamp, values, part, **given), expected, values, part, given)


def reseal(data: bytes) -> bytes:
    """The message with the checksum that belongs to it."""
    if len(data) < AFTER:
        return data
    return data[:BEFORE] + b"%08x" % crc32(data[AFTER:], crc32(data[:8])) + data[AFTER:]


def edit(data: bytes, old: str | None, new: str) -> bytes:
    """The message with one change in its header (None: the header replaced), again with a right length and checksum."""
    length = int.from_bytes(data[:8], "little")
    head, body = data[8 : 8 + length], data[8 + length :]
    assert old is None or head.count(old.encode()) >= 1, old
    head = new.encode() if old is None else head.replace(old.encode(), new.encode(), 1).rstrip()
    head += b" " * (-len(head) % 8)
    return reseal(len(head).to_bytes(8, "little") + head + body)


def tensors(data: bytes) -> dict[str, Any]:
    """What the header says of each tensor."""
    said: dict[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    del said["__metadata__"]
    return said


def claim(
    data: bytes, name: str, dtype: str | None = None, shape: list[int] | None = None, offsets: list[int] | None = None
) -> bytes:
    """The message with a header that says something else of one tensor, and a right checksum."""
    said = tensors(data)[name]

    def text(dtype: str, shape: list[int], offsets: list[int]) -> str:
        sizes, ends = (",".join(f"{number:10}" for number in each) for each in (shape, offsets))
        return f'"{name}":{{"dtype":"{dtype}","shape":[{sizes}],"data_offsets":[{ends}]}}'

    old = text(said["dtype"], said["shape"], said["data_offsets"])
    shape, offsets = said["shape"] if shape is None else shape, said["data_offsets"] if offsets is None else offsets
    return edit(data, old, text(said["dtype"] if dtype is None else dtype, shape, offsets))


def place(data: bytes, name: str) -> tuple[int, int]:
    """Where a tensor's bytes lie in the message."""
    start, stop = tensors(data)[name]["data_offsets"]
    return 8 + int.from_bytes(data[:8], "little") + start, 8 + int.from_bytes(data[:8], "little") + stop


def overwrite(data: bytes, at: int, new: bytes) -> bytes:
    """The message with some bytes changed and a right checksum."""
    return reseal(data[:at] + new + data[at + len(new) :])


def assert_valid(item: Parcel, data: bytes, message: Message) -> None:
    """A message in its own right: finite, of the mask's length, and (where nothing is rounded) writable as it came."""
    total = item.expected.frame.total
    assert message.values.isfinite().all()
    assert len(message.values) == (total if message.mask is None else int(message.mask.sum()))
    assert all(value.isfinite().all() for value in message.extras.values())
    assert not message.report or 1 <= message.report["examples"] <= 10_000
    if not str(item.given["kind"]).startswith("int8"):
        part = ModelPart(message.mask, message.keep, item.part.rows, item.part.known)
        values = message.on(torch.zeros(total))
        assert item.again(values=values, part=part, extras=message.extras, report=message.report) == data


Spoil = Callable[[bytes, bytes, np.random.Generator], bytes]  # (message, another, chance) -> spoilt


def flip(data: bytes, other: bytes, random: np.random.Generator) -> bytes:
    """One to eight bits, anywhere."""
    raw = bytearray(data)
    for at in random.integers(0, 8 * len(raw), random.integers(1, 9)):
        raw[at // 8] ^= 1 << (at % 8)
    return bytes(raw)


def flip_header(data: bytes, other: bytes, random: np.random.Generator) -> bytes:
    """One byte of the header becomes another printable one."""
    at = int(random.integers(0, 8 + int.from_bytes(data[:8], "little")))
    return data[:at] + bytes([random.integers(32, 127)]) + data[at + 1 :]


def cut(data: bytes, other: bytes, random: np.random.Generator) -> bytes:
    """A stretch is missing: at the end, at the beginning or inside."""
    start, stop = sorted(random.integers(0, len(data) + 1, 2).tolist())
    return (data[:start], data[stop:], data[:start] + data[stop:])[random.integers(0, 3)]


def insert(data: bytes, other: bytes, random: np.random.Generator) -> bytes:
    """A few bytes too many."""
    at = int(random.integers(0, len(data) + 1))
    return data[:at] + random.bytes(int(random.integers(1, 20))) + data[at:]


def splice(data: bytes, other: bytes, random: np.random.Generator) -> bytes:
    """One message's beginning and another's end."""
    at = int(random.integers(0, min(len(data), len(other))))
    return data[:at] + other[at if random.integers(0, 2) else -max(1, len(data) - at) :]


def move(data: bytes, other: bytes, random: np.random.Generator) -> bytes:
    """A stretch is copied over another place."""
    many = int(random.integers(1, 64))
    here, there = random.integers(0, max(1, len(data) - many), 2).tolist()
    return data[:there] + data[here : here + many] + data[there + many :]


def digits(data: bytes, other: bytes, random: np.random.Generator) -> bytes:
    """A number of the header becomes another."""
    length = int.from_bytes(data[:8], "little")
    found = [at for at in range(8, 8 + length) if 48 <= data[at] < 58]
    at = found[random.integers(0, len(found))]
    return data[:at] + bytes([random.integers(48, 58)]) + data[at + 1 :]


def words(data: bytes, other: bytes, random: np.random.Generator) -> bytes:
    """A word of the header becomes another, or is there twice, or not at all."""
    pairs = [
        ("F32", "F64"),
        ("F32", "I32"),
        ("U8", "I8"),
        ("values", "mask"),
        ("shape", "shapes"),
        ('"', "'"),
        ("}", ""),
    ]
    pairs += [("{", "[" * 400), (" ", "\t"), ("[ ", "[-"), ("neurons", "bits"), ("bits", "gaps"), ("{", '{"a":1,')]
    pairs += [("float32", "float16"), ("up", "down"), ("extra.", "extra_"), ("fedloom-1", "fedloom-2"), ("0", "NaN")]
    length = int.from_bytes(data[:8], "little")
    usable = [(old, new) for old, new in pairs if old.encode() in data[8 : 8 + length]]
    old, new = usable[random.integers(0, len(usable))]
    return edit(data, old, new)


SPOILS: tuple[Spoil, ...] = (flip, flip_header, cut, insert, splice, move, digits, words)

seeds = st.integers(0, 2**32)
