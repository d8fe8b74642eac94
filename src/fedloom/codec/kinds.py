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

from fedloom.chance import absorb, uniform
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
TINY = 2.0**-126  # smaller scales lose digits, and some devices read them as zero
CHUNK = 1 << 16  # numbers looked at together: they stay in the cache
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
    }.get(kind, ((1 + 2.0**-16) / STEPS, STEPS * TINY))
    return largest * relative + least


def round_to_int8(values: Tensor, group: Tensor, groups: int, draw: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers in -127..127 [C, n] and scales [C, G] whose products stand for the values [C, n].

    `group` [C, n] says whose scale a number shares, `draw` [C, n] is its number in [0, 1). A group with a number that
    is not finite gets a scale that is not finite.
    """
    largest = values.new_zeros(len(values), groups).scatter_reduce_(1, group, values.abs(), "amax")
    scale = largest / STEPS
    scale = torch.where(scale < TINY, 0, scale)
    step = scale.gather(1, group)
    exact = torch.where(step > 0, values / step, 0)
    below = exact.floor()
    whole = below + (draw < exact - below)
    return whole.nan_to_num().clamp(-STEPS, STEPS), scale


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
        many = max(1, ROWS.get(values.device.type, 1 << 26) // max(1, values.shape[1]))
        parts = zip(numbers.split(many), keys.split(many), [None] * len(values) if mask is None else mask.split(many))
        numbers = torch.cat([numbers[:0], *(_roundtrip_int8(kind, *part, sizes) for part in parts)])
    numbers = numbers.to(values.dtype)
    return numbers if mask is None else torch.where(mask, numbers, values)


def _roundtrip_int8(kind: Kind, values: Tensor, keys: Tensor, mask: Tensor | None, sizes: Sequence[int]) -> Tensor:
    """Those of a few clients, in float32; what `mask` leaves out is anything."""
    places = torch.arange(values.shape[1], device=values.device)
    if kind == "int8/tensor":
        group = torch.repeat_interleave(torch.tensor(sizes, device=values.device), output_size=values.shape[1])
    else:
        group = (places if mask is None else (mask.cumsum(1) - 1).clamp(min=0)) // BLOCK
    sent = values if mask is None else torch.where(mask, values, 0)
    groups = scale_count(kind, values.shape[1], len(sizes))
    group = group.expand_as(values)
    whole, scale = round_to_int8(sent, group, groups, draws(keys, places))
    return whole * scale.gather(1, group)


def draws(keys: Tensor, places: Tensor) -> Tensor:
    """A number in [0, 1) for each key [C] and place [n] -> [C, n]; little by little, since hashing takes room."""
    many = max(1, ROWS.get(places.device.type, 1 << 26) // 4 // max(1, len(keys)))
    return torch.cat([uniform(absorb(keys.unsqueeze(1), part)) for part in places.split(many)], 1)


def pack(
    kind: Kind, values: Floats, places: NDArray[np.int64] | None, sizes: Sequence[int], key: Tensor | None
) -> list[NDArray[np.generic]]:
    """The numbers [n] as they travel, and behind them their scales if they have some.

    `places` are theirs in the model (None: all of them, in order), `sizes` how many of each tensor they are.
    """
    if kind == "float32":
        return [values]
    tensor = torch.from_numpy(values)
    if kind == "float16":
        return [tensor.half().numpy()]
    if kind == "bfloat16":
        return [tensor.bfloat16().view(torch.uint16).numpy()]
    assert key is not None
    where = torch.arange(len(values)) if places is None else torch.from_numpy(places)
    lengths = [*sizes] if kind == "int8/tensor" else [min(CHUNK, len(values) - i) for i in range(0, len(values), CHUNK)]
    parts = []
    for numbers, at in zip(tensor.split(lengths), where.split(lengths)):  # each with scales of its own
        group = torch.arange(len(numbers)) // (BLOCK if kind == "int8/block" else len(numbers) or 1)
        groups = scale_count(kind, len(numbers), 1)
        parts.append(round_to_int8(numbers[None], group[None], groups, draws(key.reshape(1), at)))
    whole = torch.cat([torch.zeros(0, dtype=torch.int8), *(numbers[0].to(torch.int8) for numbers, _ in parts)])
    return [whole.numpy(), torch.cat([torch.zeros(0), *(scale[0] for _, scale in parts)]).numpy()]


def unpack(kind: Kind, data: NDArray[np.generic], scale: Floats | None, sizes: Sequence[int]) -> Floats:
    """The numbers [n] as float32, all of them finite."""
    out = np.empty(len(data), np.float32)
    for start in range(0, len(data), CHUNK):
        raw, here = data[start : start + CHUNK], out[start : start + CHUNK]
        if kind == "bfloat16":
            np.left_shift(raw, 16, out=here.view(np.uint32), dtype=np.uint32, casting="unsafe")
        else:  # torch widens float16 much faster than numpy, but wants memory of its own
            here[:] = torch.from_numpy(raw.copy()).float().numpy() if kind == "float16" else raw
        check_finite("values", here)
    if scale is not None:
        if not (np.isfinite(scale) & (scale >= 0)).all() or (data == -STEPS - 1).any():
            raise Rejected("value", "a scale is negative or not finite, or a value is -128.")
        with np.errstate(over="ignore"):
            _multiply(kind, out, scale, sizes)
        check_finite("values", out)
    return out


def _multiply(kind: Kind, values: Floats, scale: Floats, sizes: Sequence[int]) -> None:
    """Each number by its scale, in place."""
    if kind == "int8/block":
        full = len(values) // BLOCK
        values[: full * BLOCK].reshape(full, BLOCK)[:] *= scale[:full, None]
        values[full * BLOCK :] *= scale[full:]  # one scale, or none
        return
    start = 0
    for size, factor in zip(sizes, scale):
        values[start : start + size] *= factor
        start += size


def check_finite(name: str, values: NDArray[np.generic]) -> None:
    """Refuse NaN and infinities; negative zero and subnormal numbers are fine."""
    for start in range(0, len(values), CHUNK):
        if not np.isfinite(values[start : start + CHUNK]).all():
            raise Rejected("value", f"'{name}' has numbers that are not finite.")
