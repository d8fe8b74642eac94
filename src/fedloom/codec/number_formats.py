"""Formats of numbers: float32, float16 or bfloat16, or int8 times a scale.

int8 rounds stochastically, so that the mean over many draws is the number itself; there is a scale per tensor or per
256 numbers that are sent. A number's draw depends only on its key and its place in the model, so that simulation
(`roundtrip`) and bytes (`pack`, `unpack`) agree to the bit. C clients, n or P numbers, G scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.chance import absorb
from fedloom.codec.mask_bytes import CHUNK
from fedloom.codec.rejected import Rejected

Kind = Literal["float32", "float16", "bfloat16", "int8/block", "int8/tensor"]
Floats = NDArray[np.float32]
Number = TypeVar("Number", int, Tensor)

# each kind's dtype in safetensors; NumPy has no bfloat16, so its bits travel as uint16
DTYPES: dict[str, str] = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "U16",
    "int8/block": "I8",
    "int8/tensor": "I8",
}
BLOCK = 256  # numbers per scale
STEPS = 127  # int8 on either side of zero
LARGEST = np.finfo(np.float32).max / STEPS  # a larger scale could give an infinite product
TINY = 2.0**-126  # smaller scales lose digits, and some devices read them as zero
TOGETHER = {"cpu": 1 << 20}  # numbers of a cohort that are rounded together; on other devices 2^26


def scale_count(kind: Kind, count: Number, tensors: int) -> Number:
    """How many scales go with `count` numbers of a model of `tensors` tensors."""
    return (count + BLOCK - 1) // BLOCK if kind == "int8/block" else count * 0 + tensors * (kind == "int8/tensor")


def bound(kind: Kind, largest: Tensor) -> Tensor:
    """A bound of the rounding error; `largest` is the number's magnitude or, for int8, the largest with its scale."""
    largest = largest.double()
    relative, least = {
        "float32": (0.0, 0.0),
        "float16": (2.0**-11, 2.0**-25),  # up to 65504; larger numbers become infinite and are refused
        "bfloat16": (2.0**-8, 2.0**-134),
    }.get(kind, ((1 + 2.0**-14) / STEPS, STEPS * TINY))
    return largest * relative + least


def draws(keys: Tensor, total: int) -> Tensor:
    """Random 16-bit integers [C, total] for each key [C] and place; four places share a hash of 64 bits."""
    many = max(1, TOGETHER.get(keys.device.type, 1 << 26) // 16 // max(1, len(keys)))
    fours = torch.arange((total + 3) // 4, device=keys.device)
    hashed = [absorb(keys.unsqueeze(1), part) for part in fours.split(many)]  # in parts, to save memory
    return torch.cat(hashed, 1).view(torch.int16)[:, :total] if total else keys.new_empty(len(keys), 0).short()


def round_to_int8(values: Tensor, draw: Tensor) -> tuple[Tensor, Tensor]:
    """Integers in -127..127 [C, G, m] and scales [C, G] whose products approximate the values [C, G, m].

    The draw, as a number in (0, 1), is added before rounding down. A group with a number that is not finite gets a
    scale that is not finite.
    """
    scale = values.abs().amax(-1) * (1 / STEPS)
    scale = torch.where(scale < TINY, 0, scale)
    steps = torch.where(scale > 0, 1 / scale, 0)
    between = draw.float().add_(2.0**15 + 0.5).mul_(2.0**-16)
    whole = (values * steps.unsqueeze(-1)).add_(between).floor_()  # two operations: some devices would fuse them
    if not bool(scale.isfinite().all()):
        whole = whole.nan_to_num()
    return whole.clamp_(-STEPS, STEPS), scale


def grouped(kind: Kind, values: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Views [C, G, m] of numbers [C, n], in G groups with a scale each; a tensor's group may be empty."""
    if kind == "int8/tensor":
        return [part.unsqueeze(1) for part in values.split([*sizes], 1)]
    full = values.shape[1] // BLOCK * BLOCK
    blocks = [values[:, i : min(i + CHUNK, full)].unflatten(1, (-1, BLOCK)) for i in range(0, full, CHUNK)]
    return [*blocks, values[:, full:].unsqueeze(1)] if full < values.shape[1] else blocks


def to_int8(kind: Kind, values: Tensor, draw: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Round to int8 [C, n] with scales [C, G]."""
    whole, scales = torch.empty_like(values, dtype=torch.int8), [values.new_empty(len(values), 0)]
    for part, chance, out in zip(*(grouped(kind, each, sizes) for each in (values, draw, whole))):
        if part.shape[2]:
            numbers, scale = round_to_int8(part, chance)
            out.copy_(numbers)
            scales.append(scale)
        else:
            scales.append(values.new_zeros(len(values), 1))
    return whole, torch.cat(scales, 1)


def from_int8(kind: Kind, whole: Tensor, scale: Tensor, sizes: Sequence[int]) -> Tensor:
    """The numbers [C, n] of int8 integers and their scales [C, G]."""
    out, done = torch.empty_like(whole, dtype=torch.float32), 0
    for part, here in zip(*(grouped(kind, each, sizes) for each in (whole, out))):
        many = part.shape[1]
        torch.mul(part, scale[:, done : done + many].unsqueeze(-1), out=here)
        done += many
    return out


def roundtrip(
    kind: Kind, values: Tensor, keys: Tensor | None, mask: Tensor | None = None, sizes: Sequence[int] = ()
) -> Tensor:
    """The values [C, P] as received; where `mask` [C, P] is False they are not sent and stay.

    int8 needs a key for each client [C], and one scale per tensor needs the tensors' sizes.
    """
    numbers = values.float()
    if kind in ("float16", "bfloat16"):
        numbers = numbers.to(torch.float16 if kind == "float16" else torch.bfloat16)
    elif kind != "float32":
        assert keys is not None
        many = 1 if mask is not None else max(1, TOGETHER.get(values.device.type, 1 << 26) // max(1, values.shape[1]))
        rows = zip(numbers.split(many), keys.split(many), [None] * len(values) if mask is None else mask)
        numbers = torch.cat([numbers[:0], *(_roundtrip_int8(kind, *row, sizes) for row in rows)])
    numbers = numbers.to(values.dtype)
    return numbers if mask is None else torch.where(mask, numbers, values)


def _roundtrip_int8(kind: Kind, values: Tensor, keys: Tensor, mask: Tensor | None, sizes: Sequence[int]) -> Tensor:
    """`roundtrip` in int8 of a few clients, or of one with its mask [P]; values outside the mask stay."""
    draw = draws(keys, values.shape[1])
    if mask is None:
        return from_int8(kind, *to_int8(kind, values, draw, sizes), sizes)
    at = torch.from_numpy(np.flatnonzero(mask)) if mask.device.type == "cpu" else mask.nonzero().squeeze(1)
    if kind == "int8/tensor":
        sizes = [int(part.sum()) for part in mask.split([*sizes])]
    brought = from_int8(kind, *to_int8(kind, values[:, at], draw[:, at], sizes), sizes)
    return values.index_copy(1, at, brought)


def pack(kind: Kind, values: Floats, draw: NDArray[np.int16] | None, sizes: Sequence[int]) -> list[NDArray[np.generic]]:
    """The numbers [n] in a rounded format, followed by their scales if they have any.

    `draw` [n] is from `draws`, at their places in the model; `sizes` is how many are from each tensor.
    """
    tensor = torch.from_numpy(values)
    if kind == "float16":
        return [tensor.half().numpy()]
    if kind == "bfloat16":
        return [tensor.bfloat16().view(torch.uint16).numpy()]
    assert draw is not None
    return [part[0].numpy() for part in to_int8(kind, tensor[None], torch.from_numpy(draw)[None], sizes)]


def unpack(kind: Kind, data: NDArray[np.generic], scale: Floats | None, sizes: Sequence[int]) -> Floats:
    """The numbers [n] as float32; raise `Rejected` if any is not finite."""
    if scale is not None:
        if not ((scale >= 0) & (scale <= LARGEST)).all() or data.min(initial=0) < -STEPS:
            raise Rejected("value", "a scale is negative, not finite or too large, or a value is -128.")
        whole, scales = torch.from_numpy(data.copy()), torch.from_numpy(scale.copy())
        return from_int8(kind, whole[None], scales[None], sizes)[0].numpy()
    out = np.empty(len(data), np.float32)
    for start in range(0, len(data), CHUNK):
        raw, here = data[start : start + CHUNK], out[start : start + CHUNK]
        if kind == "bfloat16":
            np.left_shift(raw, 16, out=here.view(np.uint32), dtype=np.uint32, casting="unsafe")
        else:  # torch widens float16 much faster than NumPy, but needs a copy
            here[:] = torch.from_numpy(raw.copy()).float().numpy() if kind == "float16" else raw
        check_finite("values", here)
    return out


def check_finite(name: str, values: NDArray[np.generic]) -> None:
    """Raise `Rejected` for NaN and infinity; negative zero and subnormal numbers are accepted."""
    for start in range(0, len(values), CHUNK):
        if not np.isfinite(values[start : start + CHUNK]).all():
            raise Rejected("value", f"'{name}' has numbers that are not finite.")
