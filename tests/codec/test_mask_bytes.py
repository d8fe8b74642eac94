"""Bitmaps and gaps, against a plain reading of their definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from codec.parcels import bools, seeds
from fedloom.codec.mask_bytes import (
    bitmap_size,
    count_entries,
    gaps_size,
    pack,
    pack_bits,
    pack_gaps,
    packed_size,
    sparse,
    unpack_bits,
    unpack_gaps,
)
from fedloom.codec.rejected import Rejected

shares = st.sampled_from([0.0, 0.001, 0.02, 0.1, 0.5, 1.0])


def plain_gaps(mask: list[bool]) -> bytes:
    """Gap by gap, byte by byte."""
    out, before = bytearray(), -1
    for place, here in enumerate(mask):
        if here:
            gap, before = place - before - 1, place
            while gap >= 128:
                out.append(gap % 128 + 128)
                gap //= 128
            out.append(gap)
    return bytes(out)


def gaps(mask: np.ndarray) -> np.ndarray:
    return pack_gaps(np.flatnonzero(mask))


@given(seeds, st.integers(0, 3000), shares)
@settings(max_examples=80)
def test_both_ways_come_back(seed, places, share):
    mask = bools(seed, share, places).numpy()
    assert gaps(mask).tobytes() == plain_gaps(mask.tolist())
    assert np.array_equal(unpack_gaps(gaps(mask), places), mask)
    bits = pack_bits(mask)
    assert len(bits) == bitmap_size(places)
    assert [bool(bits[place // 8] >> (place % 8) & 1) for place in range(places)] == mask.tolist()
    assert np.array_equal(unpack_bits(bits, places), mask)


@given(seeds, st.integers(1, 5), st.integers(1, 2000), shares)
@settings(max_examples=80)
def test_sizes_are_known_without_writing(seed, clients, places, share):
    masks = bools(seed, share, clients, places)
    assert count_entries(masks).tolist() == masks.sum(1).tolist()
    assert gaps_size(masks).tolist() == [len(gaps(mask.numpy())) for mask in masks]
    assert packed_size(masks, count_entries(masks)).tolist() == [
        len(pack(mask.numpy(), sparse(mask.numpy()))[1]) for mask in masks
    ]


@pytest.mark.parametrize("gap", [0, 127, 128, 16383, 16384, 2097151, 2097152])
def test_long_gaps(gap):
    mask = np.zeros(gap + 2, np.bool_)
    mask[gap] = True
    assert gaps(mask).tobytes() == plain_gaps(mask.tolist())
    assert np.array_equal(unpack_gaps(gaps(mask), len(mask)), mask)
    assert gaps_size(torch.from_numpy(mask)[None]).tolist() == [len(gaps(mask))]


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80",  # not complete
        b"\x01\x80",
        b"\x80\x00",  # longer than need be
        b"\x81\x80\x00",
        b"\x80\x80\x80\x80\x80\x01",  # too long
        b"\xff" * 30 + b"\x01",
        b"\x64",  # past the end
        b"\x31\x32",
        b"\xff\xff\xff\xff\x7f" * 3,
    ],
)
def test_bad_gaps_are_refused(raw):
    with pytest.raises(Rejected) as refused:
        unpack_gaps(np.frombuffer(raw, np.uint8), 100)
    assert refused.value.reason == "mask"


def test_bits_behind_the_last_place_are_refused():
    assert unpack_bits(np.array([255, 1], np.uint8), 9).all()
    for bit in range(1, 8):
        with pytest.raises(Rejected, match="mask"):
            unpack_bits(np.array([255, 1 | 1 << bit], np.uint8), 9)
