"""The choice of a gradient: the fastest one that agrees with plain PyTorch on the network at hand."""

from __future__ import annotations

import logging
from typing import NamedTuple

import torch
from torch import nn

from fedloom.accel.precision import Precision
from fedloom.core.types import Examples, Setting
from fedloom.engine.gradient.plain import PlainGradient
from fedloom.engine.gradient.protocol import Gradient
from fedloom.engine.gradient.stacked import StackedGradient
from fedloom.engine.gradient.swapped import SwappedGradient
from fedloom.engine.gradient.trial import largest_difference, trial, trial_of
from fedloom.engine.gradient.vmapped import VmappedGradient
from fedloom.errors import BadExperiment

log = logging.getLogger("fedloom")

STATISTICS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


class Chosen(NamedTuple):
    """A gradient, and why quicker ones were not taken."""

    gradient: Gradient
    slower: tuple[tuple[str, str], ...] = ()  # the name of each quicker gradient, and the reason


def fastest_gradient(setting: Setting, data: Examples, precision: Precision = "default") -> Chosen:
    """Stacked if it supports every layer, else swapped, vmapped, or each client by itself (logged, with reasons)."""
    return in_precision(_fastest(setting, data), precision)


def in_precision(found: Chosen, precision: Precision) -> Chosen:
    """The gradient with products in the precision that was asked for."""
    if precision != "bf16":
        return found
    if found.gradient.stacked is None:
        raise BadExperiment(
            "precision is 'bf16', which needs layers that are stacked over the clients, and this run's gradients are "
            f"taken {found.gradient.kind}; use engine 'local' with layers that it supports, or another precision."
        )
    return found._replace(gradient=found.gradient.stacked.lowered())


def _fastest(setting: Setting, data: Examples) -> Chosen:
    """The first gradient that agrees with plain PyTorch, in its own precision."""
    reasons: list[tuple[str, str]] = []
    tried, dtype, tolerance = trial_of(setting)
    for kind, way in (("stacked", StackedGradient), ("swapped", SwappedGradient), ("vmapped", VmappedGradient)):
        if kind == "vmapped" and (why := _why_not_vmapped(setting, data)):
            reasons.append((kind, why))
            continue
        try:
            gradient: Gradient = way(setting)
            difference = _difference(gradient if tried is setting else way(tried), tried, data, dtype)
        except Exception as problem:  # noqa: BLE001  any network may break a transformation in its own way
            reasons.append((kind, str(problem).strip().split("\n")[0] or type(problem).__name__))
            continue
        if difference < tolerance:
            return Chosen(gradient, tuple(reasons))
        reasons.append((kind, f"it differs from plain PyTorch by {difference:.1e}"))
    text, gpu = "; ".join(f"{kind}: {why}" for kind, why in reasons), data.x.is_cuda
    level, more = (logging.WARNING, ", which leaves a GPU idle") if gpu else (logging.INFO, "")
    log.log(level, "clients train by themselves%s: %s", more, text)
    return Chosen(PlainGradient(setting), tuple(reasons))


def _why_not_vmapped(setting: Setting, data: Examples) -> str:
    """Why vmap is not even tried; empty if it is."""
    layers = list(setting.module.modules())
    if any(isinstance(layer, STATISTICS) for layer in layers):
        return "batch statistics would count padding"
    if not data.x.is_cuda and any(isinstance(layer, nn.RNNBase) for layer in layers):
        return "torch.func runs recurrent layers client by client on a CPU"
    return ""


def _difference(gradient: Gradient, setting: Setting, data: Examples, dtype: torch.dtype) -> float:
    """The largest relative difference to plain PyTorch for two different clients, also of what their networks say."""
    params, batch = trial(setting, data, dtype)
    plain = PlainGradient(setting)
    (ours, said), (theirs, right) = (
        (p, g.outputs(p, batch.x)) for g, p in ((gradient, params.clone()), (plain, params))
    )
    found, expected = gradient(ours, batch), plain(theirs, batch)
    return largest_difference(zip((*found, ours, said), (*expected, theirs, right)))
