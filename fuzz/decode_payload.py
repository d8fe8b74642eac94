"""Atheris on the payload decoder: `python fuzz/decode_payload.py -runs=1000000 -rss_limit_mb=2048`.

The first byte of an input says which of 35 receivers reads it (7 ways in which a part travels, 5 kinds of values), the
second whether the checksum is repaired before, as an attacker would; the rest is the message. Whatever it is, only
`Rejected` may come out, reading may take less than twice the receiver's cap, and what is accepted must be a message
that an honest sender could have written.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

import atheris
import campaign
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
with atheris.instrument_imports(include=["fedloom"]):
    import fedloom.codec  # first and instrumented; the tests' messages need it
from codec.parcels import KINDS, PARTS, SPOILS, Parcel, assert_valid, parcel, reseal

WIDTH = 200  # of the hidden layer: a message has up to 35 kB, and its cap is well above what a header takes to parse
ITEMS: list[Parcel] = [parcel(word, kind, 0, WIDTH) for word in PARTS for kind in KINDS]
REASONS = (*get_args(fedloom.codec.Reason), "accepted")
tally = campaign.Tally(REASONS)


def read(data: bytes) -> None:
    """Let one receiver read one input."""
    if len(data) < 2:
        return
    item, message = ITEMS[data[0] % len(ITEMS)], data[2:]
    message = reseal(message) if data[1] & 1 else message
    found, reason = None, "accepted"
    with tally.measured(item.expected.limit):
        try:
            found = fedloom.codec.decode(message, item.expected)
        except fedloom.codec.Rejected as refused:
            reason = refused.reason
    tally.count(reason)
    if found is not None:
        assert_valid(item, message, found)


def mutate(data: bytes, most: int, seed: int) -> bytes:
    """Half of the time libFuzzer's own mutation, else one that knows where a header ends."""
    if seed % 2 or len(data) < 60:
        return bytes(atheris.Mutate(data, most))
    random = np.random.default_rng(seed)
    spoil = SPOILS[random.integers(0, len(SPOILS))]
    try:
        changed = spoil(data[2:], ITEMS[random.integers(0, len(ITEMS))].data, random)
    except (ValueError, IndexError, OverflowError, AssertionError):  # no header left to change
        changed = bytes(atheris.Mutate(data[2:], most - 2))
    return (data[:2] + changed)[:most]


def seeds(folder: Path) -> None:
    """One valid message for every receiver, with and without repair."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, item in enumerate(ITEMS):
        for repaired in (0, 1):
            (folder / f"valid-{number}-{repaired}").write_bytes(bytes([number, repaired]) + item.data)


if __name__ == "__main__":
    for ready in ITEMS:
        fedloom.codec.decode(ready.data, ready.expected)  # what is computed once is not a reading's
    sys.exit(campaign.fuzz(read, mutate, seeds, ["-max_len=60000", *sys.argv[1:]], tally))
