"""In which way does a cohort take its steps? It follows from the rule, the optimiser, the network and the device."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import fx, nn

from fedloom.accel.machine import own_kernels
from fedloom.core.types import Examples
from fedloom.engine.client import Gradient
from fedloom.engine.gradient.stacked import StackedGradient
from fedloom.method import Method

if TYPE_CHECKING:
    from fedloom.engine.stages import Stage

# what leaves a channel of zeros one of zeros, whose gradients are zeros too if the next weights of that channel are
ZERO_STAYS = (
    nn.Linear, nn.Conv2d, nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.GELU, nn.SiLU, nn.Flatten, nn.Identity,
    nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.BatchNorm1d, nn.BatchNorm2d,
)  # fmt: skip
ZERO_CALLS = (torch.relu, F.relu, torch.flatten, operator.add, torch.add, "relu", "flatten")


def ways(method: Method, gradient: Gradient) -> tuple[bool, bool]:
    """Is the step part of the backward pass? Or one with momentum, tensor by tensor?"""
    traits, optimiser = method.local.traits, method.optimiser
    if (traits.corrects and not traits.scales) or not isinstance(gradient, StackedGradient):
        return False, False
    return optimiser.plain and not traits.scales, optimiser.heavy or (optimiser.plain and traits.scales)


def links_of(method: Method, gradient: Gradient, data: Examples) -> tuple[Stage, ...] | None:
    """The layers, where kernels of ours take whole steps of a chain of linear ones."""
    if not (any(ways(method, gradient)) and own_kernels(data.x.device.type)):
        return None
    from fedloom.engine.cuda.mlp_step import fits

    assert isinstance(gradient, StackedGradient)
    links = None if gradient.low else gradient.chain
    return links if links and fits(links, gradient, data) else None


def narrows(method: Method, gradient: Gradient, data: Examples) -> bool:
    """May convolutional networks of several sizes be trained side by side, by kernels that leave out what is zero?"""
    if not (any(ways(method, gradient)) and own_kernels(data.x.device.type)):
        return False
    from fedloom.engine.cuda.compact import fits

    assert isinstance(gradient, StackedGradient)
    module = gradient.setting.module
    convolves = any(isinstance(layer, nn.Conv2d) for layer in module.modules())
    return (
        convolves
        and data.x.dtype == torch.float32
        and fits(gradient.setting.neurons)
        and zero_stays(gradient.graph, module)
    )


def zero_stays(graph: fx.Graph, module: nn.Module) -> bool:
    """Do neurons without weights stay without, and change nothing else?"""

    def harmless(node: fx.Node) -> bool:
        if node.op == "call_module":
            layer = module.get_submodule(str(node.target))
            return type(layer) in ZERO_STAYS and getattr(layer, "groups", 1) == 1
        return node.op in ("placeholder", "output") or node.target in ZERO_CALLS

    return all(harmless(node) for node in graph.nodes)
