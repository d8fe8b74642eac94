"""Damaged messages by the thousand: none is accepted, none raises anything else, none takes memory.

With the checksum repaired afterwards, as an attacker would, a message may be accepted; then it is a valid one.
"""

from __future__ import annotations

import tracemalloc
from contextlib import suppress

import numpy as np
import pytest

from codec.parcels import KINDS, PARTS, SPOILS, assert_valid, parcel, reseal
from fedloom.codec import Rejected, decode

WIDTH = 1000  # so that the limit is much more than an interpreter needs to read a header
HELD = [parcel(word, kind, seed, WIDTH) for seed, (word, kind) in enumerate((w, k) for w in PARTS for k in KINDS)]


def campaign(attempts: int, seed: int, repaired: bool) -> tuple[int, int]:
    """Decode so many damaged messages; how many were accepted, and the most memory that one took over its limit."""
    random, accepted, worst = np.random.default_rng(seed), 0, 0.0
    tracemalloc.start()
    for number in range(attempts):
        item = HELD[number % len(HELD)]
        other = HELD[random.integers(0, len(HELD))]
        data = SPOILS[random.integers(0, len(SPOILS))](item.data, other.data, random)
        data = reseal(data) if repaired else data
        if data == item.data:
            continue
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        message = None
        with suppress(Rejected):
            message = decode(data, item.expected)
        worst = max(worst, (tracemalloc.get_traced_memory()[1] - before) / item.expected.limit)
        if message is not None:
            accepted += 1
            assert_valid(item, data, message)
    tracemalloc.stop()
    assert worst < 2
    return accepted, attempts


def test_no_damaged_message_is_accepted():
    assert campaign(3000, seed=1, repaired=False)[0] == 0


def test_a_repaired_checksum_lets_only_valid_messages_in():
    accepted, attempts = campaign(1000, seed=2, repaired=True)
    assert 0 < accepted < attempts / 3  # a flipped bit of a value is another value


@pytest.mark.slow
def test_no_damaged_message_of_a_hundred_thousand_is_accepted():
    assert campaign(100_000, seed=3, repaired=False)[0] == 0


@pytest.mark.slow
def test_repaired_checksums_by_the_thousands():
    accepted, attempts = campaign(30_000, seed=4, repaired=True)
    assert 0 < accepted < attempts / 3
