"""Convolutions on a GPU with a weight per client, by whichever implementation was measured fastest for the shape.

`grouped` folds the clients into the channels of one grouped convolution; `triton` is our kernel, where Triton is
installed. Choices are kept on disk, so that later runs on the same device compute the same bits.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom.accel.machine import cache_folder, own_kernels
from fedloom.engine.gradient.products import Kept, Step, step_or_gradients
from fedloom.files import replace_file

log = logging.getLogger("fedloom")

How = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]  # stride, padding, dilation, groups of one client
Implementation = Callable[..., Any]
ALL: Kept = (None, None)
REPEATS = 5  # measurements, of which the shortest counts


class MeasuredConv(torch.autograd.Function):
    """A convolution per client: inputs [C * B, i, ...], weights [C, o, i, ...], biases [C, o] or None.

    Beyond the `kept` channels all weights, inputs and gradients are zero; our kernels leave them out.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, how: How, precision: str, step: Step | None, kept: Kept = ALL
    ) -> Tensor:
        """Convolve by the fastest implementation for this shape."""
        ctx.save_for_backward(x, w, b)
        ctx.how, ctx.precision, ctx.step, ctx.kept = how, precision, step, kept
        out: Tensor = fastest("forward", x, w, how, precision)(x, w, b, how, precision, kept)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """The input's gradient first, since it needs the weight from before the step."""
        x, w, b = ctx.saved_tensors
        how, precision, kept, gx = ctx.how, ctx.precision, ctx.kept, None
        if ctx.needs_input_grad[0]:
            gx = fastest("input", x, w, how, precision)(g, x, w, how, precision, kept)
        gw, gb = fastest("weight", x, w, how, precision)(g, x, w, how, precision, kept)
        return gx, *step_or_gradients(gw, None if b is None else gb, w, b, ctx.step, None), None, None, None, None


def _fold(x: Tensor, clients: int, low: bool) -> Tensor:
    """Fold [C * B, channels, ...] to [B, C * channels, ...]."""
    x = x.to(torch.bfloat16) if low else x
    folded: Tensor = x.unflatten(0, (clients, -1)).transpose(0, 1).flatten(1, 2)
    return folded


def _unfold(x: Tensor, clients: int) -> Tensor:
    """Unfold [B, C * channels, ...] to [C * B, channels, ...]."""
    own: Tensor = x.unflatten(1, (clients, -1)).transpose(0, 1).flatten(0, 1)
    return own.to(torch.promote_types(x.dtype, torch.float32))


def _grouped(x: Tensor, w: Tensor, b: Tensor | None, how: How, precision: str, kept: Kept = ALL) -> Tensor:
    """One grouped convolution for all clients."""
    stride, padding, dilation, groups = how
    clients, low = len(w), precision == "bf16"
    bias = None if b is None else b.flatten().to(torch.bfloat16 if low else b.dtype)
    weight = w.flatten(0, 1).to(torch.bfloat16 if low else w.dtype)
    none = [0] * len(stride)
    folded = torch.ops.aten.convolution(
        _fold(x, clients, low), weight, bias, stride, padding, dilation, False, none, clients * groups
    )
    return _unfold(folded, clients)


def _grouped_back(g: Tensor, x: Tensor, w: Tensor, how: How, precision: str, wanted: tuple[bool, bool]) -> Tensor:
    """Gradient of the input, or else of the weight, of the grouped convolution."""
    stride, padding, dilation, groups = how
    clients, low = len(w), precision == "bf16"
    weight = w.flatten(0, 1).to(torch.bfloat16 if low else w.dtype)
    gx, gw, _ = torch.ops.aten.convolution_backward(
        _fold(g, clients, low), _fold(x, clients, low), weight, None, stride, padding, dilation, False,
        [0] * len(stride), clients * groups, (*wanted, False),
    )  # fmt: skip
    return _unfold(gx, clients) if wanted[0] else gw.view_as(w).to(w.dtype)


def _grouped_input(g: Tensor, x: Tensor, w: Tensor, how: How, precision: str, kept: Kept) -> Tensor:
    return _grouped_back(g, x, w, how, precision, (True, False))


def _grouped_weight(g: Tensor, x: Tensor, w: Tensor, how: How, precision: str, kept: Kept) -> tuple[Tensor, Tensor]:
    gb = g.unflatten(0, (len(w), -1)).sum((1, *range(3, g.dim() + 1)))
    return _grouped_back(g, x, w, how, precision, (False, True)), gb


def _own_kernels() -> dict[str, Implementation]:
    """Our kernels; none where Triton is not installed."""
    if not own_kernels("cuda"):
        return {}
    from fedloom.engine.cuda import convolution_kernels as kernels

    return {
        "forward": lambda x, w, b, how, precision, kept: kernels.convolve(x, w, b, how[:3], precision, kept),
        "input": lambda g, x, w, how, precision, kept: kernels.input_gradient(g, w, x, how[:3], precision, kept),
        "weight": lambda g, x, w, how, precision, kept: kernels.weight_gradient(g, x, w, how[:3], precision, kept),
    }


@cache
def implementations() -> dict[str, dict[str, Implementation]]:
    """Functions for the result and for both gradients, by the implementation's name."""
    grouped: dict[str, Implementation] = {"forward": _grouped, "input": _grouped_input, "weight": _grouped_weight}
    own = _own_kernels()
    return {"grouped": grouped, **({"triton": own} if own else {})}


def fastest(kind: str, x: Tensor, w: Tensor, how: How, precision: str) -> Implementation:
    """The fastest implementation of one `kind` of result for inputs and weights of these shapes."""
    key = f"{kind} {tuple(x.shape)} {tuple(w.shape)} {how} {precision} {x.dtype} {x.is_contiguous()}"
    found = _known(x.device).get(key)
    if found not in implementations():
        found = _measured(kind, x, w, how, precision)
        _remember(x.device, key, found)
    return implementations()[found][kind]


def _measured(kind: str, x: Tensor, w: Tensor, how: How, precision: str) -> str:
    """Name of the implementation that takes the least time, by trying all."""
    plain = how[3] == 1 and x.dim() == 4 and x.dtype == torch.float32 and x.device.type == "cuda"
    names = [name for name in implementations() if name == "grouped" or plain]
    if len(names) == 1:
        return names[0]
    milliseconds = {}
    with torch.no_grad():
        y = _grouped(x, w, None, how, precision).contiguous(memory_format=torch.channels_last) if plain else x
        for name in names:
            run = implementations()[name][kind]
            facts = (x, w, None, how, precision, ALL) if kind == "forward" else (y, x, w, how, precision, ALL)
            run(*facts)  # compile
            milliseconds[name] = min(_milliseconds(run, facts) for _ in range(REPEATS))
    return min(milliseconds, key=lambda name: milliseconds[name])


def _milliseconds(run: Implementation, facts: tuple[Any, ...]) -> float:
    """Time of one call on the GPU."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run(*facts)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def _file() -> Path:
    """File of choices."""
    return cache_folder() / "convolutions.json"


@cache
def _device_key(device: torch.device) -> str:
    """Name of the device and version of torch, for which a choice holds."""
    return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}" if device.type == "cuda" else "cpu"


@cache
def _all_known() -> dict[str, dict[str, str]]:
    """Choices of earlier processes, by device; none where the file cannot be read."""
    try:
        found = json.loads(_file().read_text())
        return {str(k): {str(a): str(b) for a, b in v.items()} for k, v in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _known(device: torch.device) -> dict[str, str]:
    """Choices for this device."""
    return _all_known().setdefault(_device_key(device), {})


def _remember(device: torch.device, key: str, name: str) -> None:
    """Keep a choice on disk; where that fails it holds for this process."""
    _known(device)[key] = name
    if device.type != "cuda":
        return
    text = json.dumps(_all_known(), indent=1)
    try:
        _file().parent.mkdir(parents=True, exist_ok=True)
        replace_file(_file(), [text.encode()])
    except OSError as problem:
        log.info("the fastest convolution is measured again by the next run: %s", problem)
