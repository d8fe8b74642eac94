"""Masks as bytes: a bitmap, or the gaps between the entries, whichever is shorter.

A gap is the number of places between one entry and the next (for the first entry: before it), written seven bits per
byte, lowest first, with the top bit set on every byte but the last. C clients, P places.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.codec.rejected import Rejected

Bits = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]
Number = TypeVar("Number", bound=np.generic)
LONGEST = 5  # bytes of a gap: 35 bits
CHUNK = 1 << 16  # numbers processed at a time: they stay in the cache
TOGETHER = 1 << 22  # places of a cohort that are processed at a time


def bitmap_size(places: int) -> int:
    """Bytes of a bitmap."""
    return (places + 7) // 8


def pack_bits(mask: Bits) -> Bytes:
    """The bitmap of a mask [P]: eight places per byte, the first in the lowest bit."""
    return np.packbits(mask, bitorder="little")


def unpack_bits(data: Bytes, places: int) -> Bits:
    """The mask [P] of a bitmap of the right length."""
    if places % 8 and data[-1] >> (places % 8):
        raise Rejected("mask", f"the bitmap has entries after the last of {places} places.")
    return np.unpackbits(data, count=places, bitorder="little").view(np.bool_)


def pack_gaps(entries: Places) -> Bytes:
    """The gaps of a mask with entries at these places, rising."""
    gaps = np.diff(entries, prepend=-1)
    gaps -= 1
    low = gaps.astype(np.uint8)
    more = np.flatnonzero(gaps >= 128)  # few: all others take one byte
    if not len(more):
        return low
    low[more] |= 128
    gaps = gaps[more] >> 7
    lengths = np.ones(len(gaps), np.int64)  # of the bytes still to be written
    for step in range(1, LONGEST - 1):
        lengths += gaps >= 1 << (7 * step)
    starts = np.zeros(len(low) + 1, np.int64)
    starts[more + 1] = lengths
    np.cumsum(starts, out=starts)
    starts += np.arange(len(starts))
    out = np.empty(starts[-1], np.uint8)
    out[starts[:-1]] = low
    starts = starts[more]
    while len(gaps):
        starts = starts + 1
        out[starts] = (gaps & 127) | (gaps > 127) << 7
        starts, gaps = starts[gaps > 127], gaps[gaps > 127] >> 7
    return out


def unpack_gaps(data: Bytes, places: int) -> Bits:
    """The mask [P] of gaps; raise `Rejected` unless they are written in the shortest way and end within the places."""
    ends = np.flatnonzero(data < 128)
    if len(data) and (not len(ends) or ends[-1] != len(data) - 1):
        raise Rejected("mask", "the last gap is not complete.")
    entries = data[ends].astype(np.int64)  # of a short gap all, of a long one the top byte
    if len(ends) < len(data):
        lengths = np.diff(ends, prepend=-1)
        long = np.flatnonzero(lengths > 1)
        lengths, ends, top = lengths[long], ends[long], entries[long]
        if (lengths > LONGEST).any() or (top == 0).any():
            raise Rejected("mask", "a gap is not written in the shortest way.")
        for step in range(1, int(lengths.max())):
            top = np.where(lengths > step, top << 7 | data[ends - step] & 127, top)
        entries[long] = top
    if len(entries) and entries.max() >= places:  # before the sum, which could overflow
        raise Rejected("mask", f"a gap leads past the last of {places} places.")
    entries += 1
    np.cumsum(entries, out=entries)
    if len(entries) and entries[-1] > places:
        raise Rejected("mask", f"the gaps lead past the last of {places} places.")
    entries -= 1
    mask = np.zeros(places, np.bool_)
    mask[entries] = True
    return mask


def gaps_size(mask: Tensor) -> Tensor:
    """Bytes of the gaps of each mask [C, P] -> [C], without writing them."""
    places = mask.shape[1]
    flat = mask.flatten().nonzero().squeeze(1)
    apart = torch.diff(flat, prepend=flat.new_full((1,), -1)) - 1
    gap = torch.minimum(apart, flat % places)  # a client's first gap starts at its own first place
    length = torch.ones_like(gap)
    for step in range(1, LONGEST):
        length += gap >= 1 << (7 * step)
    return torch.zeros(len(mask), dtype=torch.int64, device=mask.device).index_add_(0, flat // places, length)


def pack(mask: Bits, entries: Places | None) -> tuple[str, Bytes]:
    """The shorter of both forms, with its word; `entries` are from `sparse`."""
    if entries is not None and len(gaps := pack_gaps(entries)) < bitmap_size(len(mask)):
        return "gaps", gaps
    return "bits", pack_bits(mask)


def sparse(mask: Bits) -> Places | None:
    """The entries' places if a mask [P] has so few that gaps, of at least a byte each, may be shorter; else None."""
    return np.flatnonzero(mask) if np.count_nonzero(mask) < bitmap_size(len(mask)) else None


def gather(values: NDArray[Number], mask: Bits | None, entries: Places | None = None) -> NDArray[Number]:
    """The numbers [n] in a mask [P], or all; `entries` are from `sparse`."""
    if mask is None:
        return values
    if entries is not None:
        return values[entries]
    out, done = np.empty(np.count_nonzero(mask), values.dtype), 0
    for start in range(0, len(values), CHUNK):
        places = np.flatnonzero(mask[start : start + CHUNK])
        # all places are within bounds; 'clip' saves NumPy a buffer
        np.take(values[start : start + CHUNK], places, out=out[done : done + len(places)], mode="clip")
        done += len(places)
    return out


def count_entries(mask: Tensor) -> Tensor:
    """Entries of each mask [C, P] -> [C]; NumPy counts bytes fifty times faster than torch adds them up."""
    if mask.device.type != "cpu":
        return mask.sum(1)
    return torch.tensor([np.count_nonzero(row) for row in mask.numpy()], dtype=torch.int64)


def packed_size(mask: Tensor, count: Tensor) -> Tensor:
    """Bytes of each mask [C, P] with `count` [C] entries, in the shorter of both forms [C]."""
    limit = bitmap_size(mask.shape[1])
    sizes = torch.full((len(mask),), limit, device=mask.device)
    few = (count < limit).nonzero().squeeze(1)  # a gap takes at least a byte
    for part in few.split(max(1, TOGETHER // mask.shape[1])):
        sizes[part] = gaps_size(mask[part]).clamp(max=limit)
    return sizes
