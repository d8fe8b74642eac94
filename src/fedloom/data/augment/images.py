"""Transforms of images [n, channels, height, width] and signals [n, channels, length], one by one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.data.augment.draws import below, looked_up, normal_table, uniforms
from fedloom.errors import BadExperiment

_FLIP, _CROP, _NOISE, _CUTOUT = range(1, 5)  # purposes of random numbers


@dataclass(frozen=True)
class Flip:
    """Mirror an example left to right with this chance.

    `targets`: targets [n, height, width] are mirrored with their images, as goal `pixels` needs it.
    """

    chance: float = 0.5
    targets: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.chance <= 1:
            raise BadExperiment(f"chance of flip is {self.chance}; expected a number from 0 to 1, such as 0.5.")

    def __call__(self, x: Tensor, y: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Mirror the last axis of the examples that are drawn."""
        _axes_of("flip", x)
        mirrored = uniforms(keys, _FLIP, 1)[:, 0] < self.chance
        if self.targets:
            _match("flip", x, y)
            y = _mirror(y, mirrored)
        return _mirror(x, mirrored), y


@dataclass(frozen=True)
class Crop:
    """Pad an example with `pad` zeros on all sides and cut out a window of its own size at a random place.

    `targets`: targets [n, height, width] are cut with their images, as goal `pixels` needs it; those that lie outside
    of the image become `fill`, the class that counts for nothing.
    """

    pad: int = 4
    targets: bool = False
    fill: int = 255

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise BadExperiment(f"pad of crop is {self.pad}; expected 0 or more, such as 4.")

    def __call__(self, x: Tensor, y: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Cut windows out of the padded examples."""
        axes = _axes_of("crop", x)
        if self.targets:
            _match("crop", x, y)
        if self.pad == 0 or not x.numel():
            return x, y
        corner = below(keys, _CROP, (2 * self.pad + 1,) * axes)
        if self.targets:
            y = _windows(y[:, None], corner, self.pad, self.fill)[:, 0]
        return _windows(x, corner, self.pad, 0), y


@dataclass(frozen=True)
class Noise:
    """Add normal noise with this standard deviation to every number.

    Each number takes one of 65536 equally likely quantiles, the farthest 4.3 deviations from 0: the noise is the same
    on every device and costs less than a generator of torch.
    """

    std: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.std < math.inf:
            raise BadExperiment(f"std of noise is {self.std}; expected 0 or more, such as 0.1.")

    def __call__(self, x: Tensor, y: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Add the noise."""
        if not x.is_floating_point():
            raise BadExperiment(f"noise needs examples of floating-point numbers; examples are {x.dtype}.")
        table = normal_table(self.std, x.dtype, x.device)
        return x + looked_up(keys, _NOISE, x[0].numel() if len(x) else 0, table).view(x.shape), y


@dataclass(frozen=True)
class Cutout:
    """Set a square of `size` by `size` (a piece of a signal) to zero around a random place of each example.

    The centre lies anywhere in the image, so that a square may lie partly outside.
    """

    size: int = 8

    def __post_init__(self) -> None:
        if self.size < 1:
            raise BadExperiment(f"size of cutout is {self.size}; expected 1 or more, such as 8.")

    def __call__(self, x: Tensor, y: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Write the zeros."""
        axes = _axes_of("cutout", x)
        if not x.numel():
            return x, y
        sizes, channels = x.shape[2:], len(x) * x.shape[1]
        first = below(keys, _CUTOUT, tuple(sizes)) - self.size // 2
        side = torch.arange(self.size, device=x.device)
        index = torch.zeros((len(x), *[1] * axes), dtype=torch.int64, device=x.device)
        for axis, size in enumerate(sizes):  # places outside of an image are moved to its edge, which is in the square
            along = (first[:, axis, None] + side).clamp(0, size - 1)
            index = index * size + along.view(len(x), *[-1 if other == axis else 1 for other in range(axes)])
        channel = torch.arange(channels, device=x.device).view(len(x), -1, 1) * math.prod(sizes)
        return x.reshape(-1).index_fill(0, (channel + index.view(len(x), 1, -1)).view(-1), 0).view(x.shape), y


def _axes_of(name: str, x: Tensor) -> int:
    """How many axes of images or signals are places: 2 or 1."""
    if x.dim() not in (3, 4):
        expected = "images [channels, height, width] or signals [channels, length]"
        raise BadExperiment(f"{name} needs {expected}; examples have shape {tuple(x.shape[1:])}.")
    return x.dim() - 2


def _match(name: str, x: Tensor, y: Tensor) -> None:
    """Refuse targets that are not one number for each place of their example."""
    if y.shape[1:] != x.shape[2:]:
        raise BadExperiment(
            f"{name} moves targets with their images; expected targets of shape {tuple(x.shape[2:])} for each example, "
            f"got {tuple(y.shape[1:])}. Leave `targets` out where a target is no image."
        )


def _mirror(x: Tensor, mirrored: Tensor) -> Tensor:
    """Mirror the last axis of some examples."""
    if x.device.type == "cpu" and x.dtype != torch.bfloat16:  # NumPy touches only those: a third of the time
        out, some = x.numpy().copy(), mirrored.numpy()
        out[some] = out[some][..., ::-1]
        return torch.from_numpy(out)
    return torch.where(mirrored.view(-1, *[1] * (x.dim() - 1)), x.flip(-1), x)


def _windows(x: Tensor, corner: Tensor, pad: int, fill: int) -> Tensor:
    """Cut a window of an example's own size out of each padded example [n, channels, ...], from its corner [n, axes].

    All possible windows of the padded memory are one strided view, whose rows are then chosen: no index per number.
    """
    n, channels, *sizes = x.shape
    padded = F.pad(x, (pad, pad) * len(sizes), value=fill)  # contiguous
    strides = padded.stride()
    start = torch.arange(n, device=x.device) * strides[0]
    for places, stride in zip(corner.unbind(1), strides[2:]):
        start = start + places * stride
    span = sum((size - 1) * stride for size, stride in zip((channels, *sizes), strides[1:]))  # first to last number
    view = padded.as_strided((padded.numel() - span, channels, *sizes), (1, *strides[1:]))
    return view.index_select(0, start)
