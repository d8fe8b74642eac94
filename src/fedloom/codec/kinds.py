"""How is a number written down? As float32, float16 or bfloat16, or as int8 times a scale.

int8 rounds up or down by chance, so that the mean over many draws is the number itself; a scale belongs to each tensor
or to every 256 numbers that are sent. A number's chance depends on its key and its place in the model only, so the
simulation (`roundtrip`) and the bytes (`pack`, `unpack`) agree to the bit. C clients, n or P numbers, G scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.chance import absorb
from fedloom.codec.places import CHUNK
from fedloom.codec.rejected import Rejected

Kind = Literal["float32", "float16", "bfloat16", "int8/block", "int8/tensor"]
Floats = NDArray[np.float32]
Number = TypeVar("Number", int, Tensor)

# safetensors' word for each kind; NumPy has no bfloat16, so its bits travel as they are
DTYPES: dict[str, str] = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "U16",
    "int8/block": "I8",
    "int8/tensor": "I8",
}
BLOCK = 256  # numbers to a scale
STEPS = 127  # int8 on either side of zero
WIDEST = np.finfo(np.float32).max / STEPS  # a larger scale could give an infinite product
TINY = 2.0**-126  # smaller scales lose digits, and some devices read them as zero
ROWS = {"cpu": 1 << 20}  # numbers of a cohort that are rounded together; elsewhere 2^26


def scale_count(kind: Kind, count: Number, tensors: int) -> Number:
    """How many scales go with so many numbers of a model of so many tensors."""
    return (count + BLOCK - 1) // BLOCK if kind == "int8/block" else count * 0 + tensors * (kind == "int8/tensor")


def bound(kind: Kind, largest: Tensor) -> Tensor:
    """The most a number can be off; `largest` is its own size or, for int8, the largest that shares its scale."""
    largest = largest.double()
    relative, least = {
        "float32": (0.0, 0.0),
        "float16": (2.0**-11, 2.0**-25),  # up to 65504; beyond, it becomes infinite and the receiver refuses it
        "bfloat16": (2.0**-8, 2.0**-134),
    }.get(kind, ((1 + 2.0**-14) / STEPS, STEPS * TINY))
    return largest * relative + least


def draws(keys: Tensor, total: int) -> Tensor:
    """A whole number of 16 bits for each key [C] and place -> [C, total]; four places share a hash of 64 bits."""
    many = max(1, ROWS.get(keys.device.type, 1 << 26) // 16 // max(1, len(keys)))
    fours = torch.arange((total + 3) // 4, device=keys.device)
    hashed = [absorb(keys.unsqueeze(1), part) for part in fours.split(many)]  # little by little: it takes room
    return torch.cat(hashed, 1).view(torch.int16)[:, :total] if total else keys.new_empty(len(keys), 0).short()


def round_to_int8(values: Tensor, draw: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers in -127..127 [C, G, m] and scales [C, G] whose products stand for the values [C, G, m].

    The draw, as a number in (0, 1), is added before rounding down. A group with a number that is not finite gets a
    scale that is not finite.
    """
    scale = values.abs().amax(-1) * (1 / STEPS)
    scale = torch.where(scale < TINY, 0, scale)
    steps = torch.where(scale > 0, 1 / scale, 0)
    between = draw.float().add_(2.0**15 + 0.5).mul_(2.0**-16)
    whole = (values * steps.unsqueeze(-1)).add_(between).floor_()  # two steps: some devices would fuse them
    if not bool(scale.isfinite().all()):
        whole = whole.nan_to_num()
    return whole.clamp_(-STEPS, STEPS), scale


def grouped(kind: Kind, values: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Views [C, G, m] of numbers [C, n], G groups that share a scale each; a tensor's may be empty."""
    if kind == "int8/tensor":
        return [part.unsqueeze(1) for part in values.split([*sizes], 1)]
    full = values.shape[1] // BLOCK * BLOCK
    blocks = [values[:, i : min(i + CHUNK, full)].unflatten(1, (-1, BLOCK)) for i in range(0, full, CHUNK)]
    return [*blocks, values[:, full:].unsqueeze(1)] if full < values.shape[1] else blocks


def to_int8(kind: Kind, values: Tensor, draw: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Whole numbers [C, n] as int8, and their scales [C, G]."""
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
    """The numbers [C, n] that whole ones and their scales [C, G] stand for."""
    out, done = torch.empty_like(whole, dtype=torch.float32), 0
    for part, here in zip(*(grouped(kind, each, sizes) for each in (whole, out))):
        many = part.shape[1]
        torch.mul(part, scale[:, done : done + many].unsqueeze(-1), out=here)
        done += many
    return out


def roundtrip(
    kind: Kind, values: Tensor, keys: Tensor | None, mask: Tensor | None = None, sizes: Sequence[int] = ()
) -> Tensor:
    """The values [C, P] as the receiver reads them; where `mask` [C, P] is False they are not sent and stay.

    int8 needs a key for each client [C], and one scale per tensor needs the tensors' sizes.
    """
    numbers = values.float()
    if kind in ("float16", "bfloat16"):
        numbers = numbers.to(torch.float16 if kind == "float16" else torch.bfloat16)
    elif kind != "float32":
        assert keys is not None
        many = 1 if mask is not None else max(1, ROWS.get(values.device.type, 1 << 26) // max(1, values.shape[1]))
        rows = zip(numbers.split(many), keys.split(many), [None] * len(values) if mask is None else mask)
        numbers = torch.cat([numbers[:0], *(_roundtrip_int8(kind, *row, sizes) for row in rows)])
    numbers = numbers.to(values.dtype)
    return numbers if mask is None else torch.where(mask, numbers, values)


def _roundtrip_int8(kind: Kind, values: Tensor, keys: Tensor, mask: Tensor | None, sizes: Sequence[int]) -> Tensor:
    """Those of a few clients, or of one with its mask [P]; what that leaves out stays."""
    draw = draws(keys, values.shape[1])
    if mask is None:
        return from_int8(kind, *to_int8(kind, values, draw, sizes), sizes)
    at = torch.from_numpy(np.flatnonzero(mask)) if mask.device.type == "cpu" else mask.nonzero().squeeze(1)
    if kind == "int8/tensor":
        sizes = [int(part.sum()) for part in mask.split([*sizes])]
    brought = from_int8(kind, *to_int8(kind, values[:, at], draw[:, at], sizes), sizes)
    return values.index_copy(1, at, brought)


def pack(kind: Kind, values: Floats, draw: NDArray[np.int16] | None, sizes: Sequence[int]) -> list[NDArray[np.generic]]:
    """The numbers [n] as they travel where they are rounded, and behind them their scales if they have some.

    `draw` [n] is what `draws` gives for their places in the model, `sizes` how many of each tensor they are.
    """
    tensor = torch.from_numpy(values)
    if kind == "float16":
        return [tensor.half().numpy()]
    if kind == "bfloat16":
        return [tensor.bfloat16().view(torch.uint16).numpy()]
    assert draw is not None
    return [part[0].numpy() for part in to_int8(kind, tensor[None], torch.from_numpy(draw)[None], sizes)]


def unpack(kind: Kind, data: NDArray[np.generic], scale: Floats | None, sizes: Sequence[int]) -> Floats:
    """The numbers [n] as float32, all of them finite."""
    if scale is not None:
        if not ((scale >= 0) & (scale <= WIDEST)).all() or data.min(initial=0) < -STEPS:
            raise Rejected("value", "a scale is negative, not finite or too large, or a value is -128.")
        whole, scales = torch.from_numpy(data.copy()), torch.from_numpy(scale.copy())
        return from_int8(kind, whole[None], scales[None], sizes)[0].numpy()
    out = np.empty(len(data), np.float32)
    for start in range(0, len(data), CHUNK):
        raw, here = data[start : start + CHUNK], out[start : start + CHUNK]
        if kind == "bfloat16":
            np.left_shift(raw, 16, out=here.view(np.uint32), dtype=np.uint32, casting="unsafe")
        else:  # torch widens float16 much faster than numpy, but wants memory of its own
            here[:] = torch.from_numpy(raw.copy()).float().numpy() if kind == "float16" else raw
        check_finite("values", here)
    return out


def check_finite(name: str, values: NDArray[np.generic]) -> None:
    """Refuse NaN and infinities; negative zero and subnormal numbers are fine."""
    for start in range(0, len(values), CHUNK):
        if not np.isfinite(values[start : start + CHUNK]).all():
            raise Rejected("value", f"'{name}' has numbers that are not finite.")
