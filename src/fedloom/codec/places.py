"""How does a mask travel? As a bitmap, or as the gaps between its entries, whichever takes fewer bytes.

A gap is how many places lie between one entry and the next (for the first: before it), written seven bits to a byte,
lowest first, with the top bit set on every byte but the last. C clients, P places.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.codec.rejected import Rejected

Bits = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
LONGEST = 5  # bytes of a gap: 35 bits
TOGETHER = 1 << 22  # places of a cohort that are looked at together


def bitmap_size(places: int) -> int:
    """Bytes of a bitmap."""
    return (places + 7) // 8


def pack_bits(mask: Bits) -> Bytes:
    """The bitmap of a mask [P]: eight places a byte, the first in the lowest bit."""
    return np.packbits(mask, bitorder="little")


def unpack_bits(data: Bytes, places: int) -> Bits:
    """The mask [P] of a bitmap of the right length."""
    if places % 8 and data[-1] >> (places % 8):
        raise Rejected("mask", f"the bitmap has entries behind the last of {places} places.")
    return np.unpackbits(data, count=places, bitorder="little").view(np.bool_)


def pack_gaps(mask: Bits) -> Bytes:
    """The gaps of a mask [P]."""
    gaps = np.diff(np.flatnonzero(mask), prepend=-1) - 1
    lengths = np.ones(len(gaps), np.int64)
    for step in range(1, LONGEST):
        lengths += gaps >= 1 << (7 * step)
    starts = np.cumsum(lengths) - lengths
    out = np.empty(int(lengths.sum()), np.uint8)
    for step in range(int(lengths.max(initial=0))):
        here = lengths > step
        more = (lengths[here] > step + 1).astype(np.uint8) << 7
        out[starts[here] + step] = ((gaps[here] >> (7 * step)) & 127).astype(np.uint8) | more
    return out


def unpack_gaps(data: Bytes, places: int) -> Bits:
    """The mask [P] of gaps; they must be written in the shortest way and end within the places."""
    ends = np.flatnonzero(data < 128)
    if len(data) and (not len(ends) or ends[-1] != len(data) - 1):
        raise Rejected("mask", "the last gap is not complete.")
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1] + 1
    lengths = ends - starts + 1
    if (lengths > LONGEST).any() or (data[ends[lengths > 1]] == 0).any():
        raise Rejected("mask", "a gap is not written in the shortest way.")
    entries = np.zeros(len(ends), np.int64)
    for step in range(int(lengths.max(initial=0))):
        here = lengths > step
        entries[here] |= (data[starts[here] + step] & 127).astype(np.int64) << (7 * step)
    if (entries >= places).any():  # before adding up, which could otherwise overflow
        raise Rejected("mask", f"a gap leads past the last of {places} places.")
    entries += 1
    np.cumsum(entries, out=entries)
    if len(entries) and entries[-1] > places:
        raise Rejected("mask", f"the gaps lead past the last of {places} places.")
    mask = np.zeros(places, np.bool_)
    mask[entries - 1] = True
    return mask


def gaps_size(mask: Tensor) -> Tensor:
    """Bytes of the gaps of each mask [C, P], without writing them [C]."""
    places = mask.shape[1]
    flat = mask.flatten().nonzero().squeeze(1)
    apart = torch.diff(flat, prepend=flat.new_full((1,), -1)) - 1
    gap = torch.minimum(apart, flat % places)  # a client's first entry counts from its own beginning
    length = torch.ones_like(gap)
    for step in range(1, LONGEST):
        length += gap >= 1 << (7 * step)
    return torch.zeros(len(mask), dtype=torch.int64, device=mask.device).index_add_(0, flat // places, length)


def pack(mask: Bits) -> tuple[str, Bytes]:
    """The shorter of both ways, and its name."""
    limit = bitmap_size(len(mask))
    if np.count_nonzero(mask) < limit and len(gaps := pack_gaps(mask)) < limit:  # an entry takes a byte or more
        return "gaps", gaps
    return "bits", pack_bits(mask)


def counts(mask: Tensor) -> Tensor:
    """Entries of each mask [C, P] -> [C]; numpy counts bytes fifty times faster than torch adds them up."""
    if mask.device.type != "cpu":
        return mask.sum(1)
    return torch.tensor([np.count_nonzero(row) for row in mask.numpy()], dtype=torch.int64)


def packed_size(mask: Tensor, count: Tensor) -> Tensor:
    """Bytes of each mask [C, P] of so many entries [C] in the shorter of both ways [C]."""
    limit = bitmap_size(mask.shape[1])
    sizes = torch.full((len(mask),), limit, device=mask.device)
    few = (count < limit).nonzero().squeeze(1)  # a gap takes a byte or more
    for part in few.split(max(1, TOGETHER // mask.shape[1])):
        sizes[part] = gaps_size(mask[part]).clamp(max=limit)
    return sizes
