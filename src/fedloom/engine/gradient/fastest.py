"""Which way to differentiate a cohort's loss? The fastest that agrees with plain PyTorch on this very network."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from fedloom.accel.precision import Precision
from fedloom.core.types import Batch, Examples, Setting
from fedloom.core.work import Batches
from fedloom.engine.client import Feed, Gradient
from fedloom.engine.cpu.native_steps import descend_compiled
from fedloom.engine.gradient.plain import PlainGradient
from fedloom.engine.gradient.stacked import StackedGradient
from fedloom.engine.gradient.vmapped import VmappedGradient
from fedloom.errors import BadExperiment
from fedloom.layout import flatten

log = logging.getLogger("fedloom")

_STATISTICS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


def fastest_gradient(setting: Setting, data: Examples) -> Gradient:
    """Stacked if it knows every layer, else vmapped, else one client after another (said once, with the reason)."""
    reasons = []
    for way in (StackedGradient, VmappedGradient):
        if way is VmappedGradient and any(isinstance(part, _STATISTICS) for part in setting.module.modules()):
            reasons.append("vmap: batch statistics would count padding")
            continue
        try:
            gradient = way(setting)
            difference = _difference(gradient, setting, data)
        except Exception as problem:  # noqa: BLE001  any network may break a transformation in its own way
            reasons.append(f"{way.__name__}: {problem}")
            continue
        if difference < 1e-6:
            if isinstance(gradient, StackedGradient) and _chain_difference(gradient, setting, data) > 1e-6:
                gradient.chain = None  # the chain misread it
            if isinstance(gradient, StackedGradient) and _compiled_difference(gradient, setting, data) > 1e-2:
                gradient.stages = None  # our own code did
            return gradient
        reasons.append(f"{way.__name__}: differs from plain PyTorch by {difference:.1e}")
    log.warning("clients are trained one after another, which is slow: %s", "; ".join(reasons))
    return PlainGradient(setting)


def _difference(gradient: Gradient, setting: Setting, data: Examples) -> float:
    """The largest relative difference to the oracle for two unlike clients."""
    params, batch = _trial(setting, data)
    ours, theirs = params.clone(), params.clone()
    return _largest(zip((*gradient(ours, batch), ours), (*PlainGradient(setting)(theirs, batch), theirs)))


def _chain_difference(gradient: StackedGradient, setting: Setting, data: Examples) -> float:
    """The same of a step, where the network is a chain that takes it without autograd."""
    if gradient.chain is None:
        return 0.0
    params, batch = _trial(setting, Examples(*(_few(t) for t in data)))  # on the CPU, where chains can be float64
    slopes, losses = PlainGradient(setting)(params.clone(), batch)
    done = gradient.descend(params, iter((batch,)), 1.0, 1.0)
    assert done is not None  # chains have that way
    return _largest(((params - done[0], slopes), (done[1], losses)))


def _compiled_difference(gradient: StackedGradient, setting: Setting, data: Examples) -> float:
    """The same of code of our own. It knows float32 alone, in which the larger of two may be another one."""
    if gradient.stages is None or data.x.device.type != "cpu":
        return 0.0
    params, batch = _trial(setting, data)
    slopes, losses = PlainGradient(setting)(params.clone(), batch)
    flat = Examples(batch.x.flatten(0, 1).to(data.x.dtype), batch.y.flatten(0, 1))
    real = (batch.weight > 0).unsqueeze(1)
    places = torch.arange(real.numel()).view_as(real)
    plan = Batches(places, real, torch.tensor([1, 1]), [2], batch.keys[:, None])
    done = descend_compiled(gradient.stages, setting.layout, params.float(), Feed(flat, plan), 1.0, 1.0)
    return 0.0 if done is None else _largest(((params - done[0], slopes), (done[1], losses)))


def _largest(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-6)) for a, b in pairs)


def _trial(setting: Setting, data: Examples) -> tuple[Tensor, Batch]:
    """Unlike weights of two clients [2, P] and a batch, of one padded (float64)."""
    start = flatten(setting.module, setting.layout).to(data.x.device, torch.float64)
    params = torch.stack((start, start * 1.1))
    count = min(4, len(data.y))
    x, y = (torch.stack((t[:count], t[-count:])) for t in data)
    weight = torch.full((2, count), 1 / count, device=x.device, dtype=torch.float64)
    if count > 2:
        weight[1] = torch.tensor([1 / (count - 1)] * (count - 1) + [0.0])
    batch = Batch(_double(x), _double(y), weight, torch.tensor([1, 2], device=x.device))
    return params, batch


def _few(values: Tensor) -> Tensor:
    """Examples enough for a trial."""
    return torch.cat((values[:4], values[-4:])).cpu()


def _double(values: Tensor) -> Tensor:
    return values.double() if values.is_floating_point() else values


def lower(gradient: Gradient, precision: Precision) -> None:
    """Products of bfloat16 numbers, where that was chosen; only the stacked way has them."""
    if precision != "bf16":
        return
    if not isinstance(gradient, StackedGradient):
        way = type(gradient).__name__.removesuffix("Gradient").lower()
        raise BadExperiment(
            "precision is 'bf16', which needs layers that are stacked over the clients, and this run trains them the "
            f"{way} way; use engine 'local' with layers it knows, or another precision."
        )
    gradient.low = True
