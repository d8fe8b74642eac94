"""Layers with parameters, run for a whole cohort: one function per layer type.

Activations hold the cohort's examples one after another, [C * B, ...], so that layers without parameters run as they
are. The parameters of a layer are stacked, [C, ...], and it splits the leading axis of its activations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.accel.machine import own_kernels
from fedloom.engine.cpu.pooling import MaxPool, max_pool_by_two
from fedloom.engine.cuda.convolution import ALL, MeasuredConv
from fedloom.engine.gradient.dropout import KeyedDropout
from fedloom.engine.gradient.products import ClientConv, ClientLinear, Kept, Part, Step, ordered


class Pass(NamedTuple):
    """One pass of a cohort through the network."""

    tensors: dict[str, Tensor]  # [C, ...] each; [...] in a fused layer if the cohort is one client
    clients: int
    weight: Tensor | None  # [C, B]; None in evaluation
    keys: Tensor | None  # [C]
    step: Step | None  # the step of SGD that is part of the backward pass
    fused: frozenset[str]  # layers that take the step
    parts: dict[str, Part]  # layers of whose weight only a part is trained
    low: bool = False  # products of bfloat16 numbers
    kept: dict[str, Kept] | None = None  # layers of which clients keep the first neurons alone; others are zero

    @property
    def training(self) -> bool:
        """Whether batch statistics and dropout are on."""
        return self.weight is not None

    def step_of(self, name: str) -> Step | None:
        """The fused step of a layer, if it takes one."""
        return self.step if name in self.fused else None

    def kept_of(self, name: str) -> Kept:
        """The numbers of neurons that clients keep at both ends of a layer."""
        return (self.kept or {}).get(name, ALL)

    def part_of(self, name: str) -> Part | None:
        """The trained part of a layer's weight; None: all of it."""
        part = self.parts.get(name)
        return None if part is None else part.of(self.clients)


Layer = Callable[[Any, str, Pass, Tensor], Tensor]


def _affine(run: Pass, name: str, x: Tensor, axes: int) -> Tensor:
    """`x * weight + bias` per client; `x` [C, B, channels, ...], or the last `axes` axes where `axes` is not 0."""
    for kind, apply in (("weight", torch.mul), ("bias", torch.add)):
        if (own := run.tensors.get(f"{name}.{kind}")) is not None:
            shape = (1, *own.shape[1:]) if not axes else (*(1,) * (x.dim() - 1 - axes), *own.shape[1:])
            own = own.view(own.shape[0], *shape)
            x = apply(x, own.view(*own.shape, *(1,) * (x.dim() - own.dim())))
    return x


def linear(layer: nn.Linear, name: str, run: Pass, x: Tensor) -> Tensor:
    """One batched product over the clients; `F.linear` if the cohort is one client."""
    w, b = run.tensors[f"{name}.weight"], run.tensors.get(f"{name}.bias")
    if w.dim() == 2:
        return F.linear(x, w, b)
    if run.kept is not None and x.dim() == 2 and not run.low:
        from fedloom.engine.cuda.compact_linear import CompactLinear

        compact: Tensor = CompactLinear.apply(x, w, b, run.step_of(name), run.kept_of(name))  # type: ignore[no-untyped-call]
        return compact
    out: Tensor = ClientLinear.apply(x, w, b, run.step_of(name), run.part_of(name), run.low)  # type: ignore[no-untyped-call]
    return out


def conv(layer: nn.Conv1d | nn.Conv2d, name: str, run: Pass, x: Tensor) -> Tensor:
    """One convolution per client on CPUs, unless inputs have one channel; on GPUs, what was measured as fastest."""
    w, b = run.tensors[f"{name}.weight"], run.tensors.get(f"{name}.bias")
    fan = w.shape[1 - x.dim()]  # input channels of one group
    groups = layer.groups if layer.groups == 1 else x.shape[1] // fan  # a sliced depthwise layer has fewer
    if isinstance(layer.padding, str) or layer.padding_mode != "zeros":
        raise NotImplementedError(f"padding '{layer.padding}' / '{layer.padding_mode}'")
    how = (layer.stride, layer.padding, layer.dilation, groups)
    call = F.conv1d if isinstance(layer, nn.Conv1d) else F.conv2d
    if w.dim() == x.dim():  # one client; torch's own gradient of the bias takes several times as long as a sum
        out: Tensor = call(ordered(x, w), w, None, *how)
        return out if b is None else out.add_(b.view(-1, *(1,) * (x.dim() - 2)))
    last = x.device.type == "cpu" and x.dim() == 4  # channels last: on CPUs pooling gains most
    if x.device.type == "cpu" and (x.shape[1] > 1 or run.clients == 1):
        out = ClientConv.apply(x, w, b, how, run.step_of(name), run.part_of(name))  # type: ignore[no-untyped-call]
        return out
    if x.device.type == "cuda":
        precision = "bf16" if run.low else "tf32" if torch.backends.cudnn.allow_tf32 else "float32"
        out = MeasuredConv.apply(x, w, b, how, precision, run.step_of(name), run.kept_of(name))  # type: ignore[no-untyped-call]
        return out
    folded = x.unflatten(0, (run.clients, -1)).transpose(0, 1).flatten(1, 2)  # [B, C * channels, ...]
    folded = folded.contiguous(memory_format=torch.channels_last) if last else folded
    bias = None if b is None else b.flatten()
    folded = call(folded, w.flatten(0, 1), bias, *how[:3], run.clients * groups)
    out = folded.unflatten(1, (run.clients, -1)).transpose(0, 1)  # [C, B, channels, ...]
    return out.movedim(2, -1).flatten(0, 1).movedim(-1, 1) if last else out.flatten(0, 1)


def max_pool(layer: nn.MaxPool2d, name: str, run: Pass, x: Tensor) -> Tensor:
    """Max-pooling, which is the same for all clients."""
    return pooled(layer, x)


def pooled(layer: nn.MaxPool2d, x: Tensor) -> Tensor:
    """torch's max-pooling in less memory on a CPU (and less time, if channels come first), in less time on a GPU."""
    if suits_kernels(x) and _tiles(layer):
        from fedloom.engine.cuda.pool_norm_kernels import Pool

        tiled: Tensor = Pool.apply(x, _pair(layer.kernel_size))  # type: ignore[no-untyped-call]
        return tiled
    last = x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    recorded = x.requires_grad and torch.is_grad_enabled()
    if x.device.type != "cpu" or x.dim() != 4 or layer.return_indices or not (x.is_contiguous() or (last and recorded)):
        plain: Tensor = layer(x)
        return plain
    if not recorded and _tiles(layer) and _pair(layer.kernel_size) == (2, 2) and min(x.shape[2:]) > 1:
        return max_pool_by_two(x)
    how = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode)
    out: Tensor = MaxPool.apply(x, how)  # type: ignore[no-untyped-call]
    return out


def suits_kernels(x: Tensor) -> bool:
    """Whether our Triton kernels take these images."""
    return x.dim() == 4 and x.dtype == torch.float32 and own_kernels(x.device.type)


def _tiles(layer: nn.MaxPool2d) -> bool:
    """Whether windows are adjacent and do not overlap."""
    plain = _pair(layer.padding) == (0, 0) and _pair(layer.dilation) == (1, 1)
    return plain and _pair(layer.stride) == _pair(layer.kernel_size) and not (layer.ceil_mode or layer.return_indices)


def _pair(size: int | tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of both axes."""
    return (size, size) if isinstance(size, int) else tuple(size)


def batch_norm(layer: nn.BatchNorm1d | nn.BatchNorm2d, name: str, run: Pass, x: Tensor) -> Tensor:
    """Statistics over each client's real examples; its running statistics move in place.

    One number per channel is normalised by the running statistics, which stay.
    """
    x = x.unflatten(0, (run.clients, -1))  # [C, B, channels, ...]
    mean, var = run.tensors.get(f"{name}.running_mean"), run.tensors.get(f"{name}.running_var")
    around = (1, -1) + (1,) * (x.dim() - 3)
    if run.weight is not None or mean is None or var is None:
        weight = run.weight if run.weight is not None else x.new_full(x.shape[:2], 1 / x.shape[1])
        weight = weight.view(*weight.shape, *(1,) * (x.dim() - 2)) / x[0, 0, 0].numel()
        now = (x * weight).sum(dim=(1, *range(3, x.dim())))  # [C, channels]
        spread = ((x - now.view(len(x), *around)).square() * weight).sum(dim=(1, *range(3, x.dim())))
        if mean is not None and var is not None:
            count = (weight > 0).flatten(1).sum(1, keepdim=True) * x[0, 0, 0].numel()
            lone = count == 1 if x.dim() == 3 else None  # [C, 1]
            if layer.momentum is not None:
                unbiased = spread.detach() * count / (count - 1).clamp(min=1)
                rate = layer.momentum if lone is None else (~lone).to(mean.dtype) * layer.momentum
                mean.lerp_(now.detach(), rate)
                var.lerp_(unbiased.to(var.dtype), rate)
            if lone is not None:
                now, spread = torch.where(lone, mean, now), torch.where(lone, var, spread)
        mean, var = now, spread
    x = (x - mean.view(len(x), *around)) * torch.rsqrt(var + layer.eps).view(len(x), *around)
    return _affine(run, name, x, 0).flatten(0, 1)


def group_norm(layer: nn.GroupNorm, name: str, run: Pass, x: Tensor) -> Tensor:
    """Statistics within each example, then the client's own affine map."""
    each = layer.num_groups == layer.num_channels  # a sub-model of such a layer has fewer groups
    groups = x.shape[1] if each else layer.num_groups
    w, b = run.tensors.get(f"{name}.weight"), run.tensors.get(f"{name}.bias")
    if suits_kernels(x) and w is not None and b is not None:
        from fedloom.engine.cuda.pool_norm_kernels import GroupNorm

        out: Tensor = GroupNorm.apply(x, w, b, groups, layer.eps)  # type: ignore[no-untyped-call]
        return out
    x = F.group_norm(x, groups, eps=layer.eps)
    return _affine(run, name, x.unflatten(0, (run.clients, -1)), 0).flatten(0, 1)


def layer_norm(layer: nn.LayerNorm, name: str, run: Pass, x: Tensor) -> Tensor:
    """Statistics within each example, then the client's own affine map."""
    axes = len(layer.normalized_shape)
    x = F.layer_norm(x, x.shape[-axes:], eps=layer.eps)
    return _affine(run, name, x.unflatten(0, (run.clients, -1)), axes).flatten(0, 1)


def embedding(layer: nn.Embedding, name: str, run: Pass, x: Tensor) -> Tensor:
    """One lookup for all clients, in their concatenated tables."""
    if layer.max_norm is not None:
        raise NotImplementedError("max_norm")
    table = run.tensors[f"{name}.weight"]  # [C, words, width]
    first = torch.arange(run.clients, device=x.device).repeat_interleave(len(x) // run.clients) * table.shape[1]
    found = F.embedding(x + first.view(-1, *(1,) * (x.dim() - 1)), table.flatten(0, 1))
    if layer.padding_idx is None:
        return found
    return torch.where((x == layer.padding_idx).unsqueeze(-1), found.detach(), found)  # padding is not trained


def dropout(layer: KeyedDropout, name: str, run: Pass, x: Tensor) -> Tensor:
    """Dropout with each client's own key."""
    if run.keys is None or layer.p == 0:
        return x
    shape = torch.Size((len(x) // run.clients, *x.shape[1:]))
    return x * layer.scale(run.keys, shape, x).flatten(0, 1)


LAYERS: dict[type[nn.Module], Layer] = {
    nn.Linear: linear,
    nn.Conv1d: conv,
    nn.Conv2d: conv,
    nn.MaxPool2d: max_pool,
    nn.BatchNorm1d: batch_norm,
    nn.BatchNorm2d: batch_norm,
    nn.GroupNorm: group_norm,
    nn.LayerNorm: layer_norm,
    nn.Embedding: embedding,
    KeyedDropout: dropout,
}

# layers that treat every example by itself: frozen, they run as they are, once for all clients
ALONE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.GroupNorm, nn.LayerNorm, nn.Embedding)
FUSED = (nn.Linear, nn.Conv1d, nn.Conv2d)  # layers whose step can be part of the backward pass
