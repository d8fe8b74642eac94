"""The facts of a run that decide how its steps are taken."""

from __future__ import annotations

from dataclasses import replace
from textwrap import shorten

import torch
from torch import nn

from fedloom.accel.machine import own_kernels
from fedloom.core.types import Examples, Setting
from fedloom.data.augment import mixes
from fedloom.data.augment.mixing import name_of
from fedloom.engine.clients import Clients
from fedloom.engine.cpu.native.move import why_not_optimiser
from fedloom.engine.cpu.native_steps import why_not_native
from fedloom.engine.gradient.protocol import Gradient
from fedloom.engine.plain_layers import plain_layers
from fedloom.engine.plan import Facts

MIXED = "the transform mixes the examples of a batch, and clients have batches of their own"
EVOLVES = "what the local rule does changes within a round"
TURNS = "the local rule trains other numbers in every pass, and a captured step knows no passes"
AIMS = "the local rule has an objective of its own, which changes from round to round"


def facts_of(
    clients: Clients,
    gradient: Gradient,
    slower: tuple[tuple[str, str], ...] = (),
    sliced: bool = True,
    captured: bool = False,
) -> Facts:
    """The facts of these clients' training; `slower` are the quicker gradients that failed, with their reasons."""
    method, setting, data = clients.method, clients.setting, clients.data
    kind, layers, head, loss = gradient.kind, plain_layers(setting) or (), setting.goal.head, setting.loss
    captured = captured and kind != "one by one"  # one client after another: no two steps are alike
    mixed = captured and mixes(setting.transform)
    aims, turns = (captured and own for own in (method.local.traits.aims, method.local.traits.turns))
    evolves = captured and (method.local.traits.evolves or method.local.twin is not None)
    captured = captured and not (mixed or evolves or turns or aims)
    traits = replace(method.local.traits, shifts=method.local.only_shifts)
    steps = not why_not_optimiser(method.optimiser) and (traits.shifts or not traits.corrects)
    native = steps and not captured and bool(layers) and head is not None and kind != "one by one"
    return Facts(
        gradient=kind,
        slower=slower,
        traits=traits,
        optimiser=method.optimiser,
        layers=layers,
        head=head,
        loss=shorten(name_of(loss), 100),
        transformed=setting.transform is not None,
        low=gradient.low,
        sliced=sliced,
        captured=captured,
        no_graph=MIXED if mixed else EVOLVES if evolves else TURNS if turns else AIMS if aims else "",
        no_native=why_not_native(setting, data, method.optimiser, traits.shifts) if native else "",
        no_kernels=_no_kernels(setting, data) if captured else "",
        no_compact=_no_compact(setting, data, gradient) if captured else "",
    )


def _no_kernels(setting: Setting, data: Examples) -> str:
    """Why Triton kernels cannot take whole steps of linear layers in a row."""
    if not own_kernels(data.x.device.type):
        return "Triton is not installed, or this is not a GPU"
    from fedloom.engine.cuda.mlp_step import fits

    return fits(plain_layers(setting) or (), setting, data)


def _no_compact(setting: Setting, data: Examples, gradient: Gradient) -> str:
    """Why kernels cannot train convolutional networks of several sizes side by side."""
    if not own_kernels(data.x.device.type):
        return "Triton is not installed, or this is not a GPU"
    if not any(isinstance(layer, nn.Conv2d) for layer in setting.module.modules()):
        return "the network has no convolutions"
    if data.x.dtype != torch.float32:
        return f"examples are {data.x.dtype}; they must be float32"
    if gradient.stacked is None or not gradient.stacked.zeros_stay:
        return "a layer of the network turns zeros into something else"
    from fedloom.engine.cuda.compact import fits

    return fits(setting.neurons)
