"""The fx graph of a network, prepared for stacked layers."""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F
from torch import fx, nn

from fedloom.engine.gradient.dropout import KeyedDropout

# layers and functions that keep a channel of zeros at zero, with zero gradients if the next weights of it are zero
ZERO_STAYS = (
    nn.Linear, nn.Conv2d, nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.GELU, nn.SiLU, nn.Flatten, nn.Identity,
    nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.BatchNorm1d, nn.BatchNorm2d,
)  # fmt: skip
ZERO_CALLS = (torch.relu, F.relu, torch.flatten, operator.add, torch.add, "relu", "flatten")


class Tracer(fx.Tracer):
    """The tracer of networks with keyed dropout."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Keyed dropout is traced as one layer."""
        return isinstance(m, KeyedDropout) or super().is_leaf_module(m, module_qualified_name)


def traced(module: nn.Module) -> fx.Graph:
    """The network's graph, with ReLU after max-pooling where the two can change places."""
    graph = Tracer().trace(module)
    pool_first(graph, module)
    return graph


def pool_first(graph: fx.Graph, module: nn.Module) -> None:
    """Move ReLU from before max-pooling to after it: the same numbers and gradients, from fewer activations."""

    def layer(node: object) -> nn.Module | None:
        if isinstance(node, fx.Node) and node.op == "call_module":
            return module.get_submodule(str(node.target))
        return None

    for pool in list(graph.nodes):
        if not isinstance(layer(pool), nn.MaxPool1d | nn.MaxPool2d) or not isinstance(layer(pool.args[0]), nn.ReLU):
            continue
        relu = pool.args[0]
        before = relu.args[0]
        if len(relu.users) == len(before.users) == 1:  # no other node reads the nodes that change
            pool.replace_all_uses_with(relu)
            pool.replace_input_with(relu, before)
            relu.replace_input_with(before, pool)
            pool.append(relu)


def zeros_stay(graph: fx.Graph, module: nn.Module) -> bool:
    """Whether neurons whose weights are zero keep them, and change no other neuron."""

    def harmless(node: fx.Node) -> bool:
        if node.op == "call_module":
            layer = module.get_submodule(str(node.target))
            return type(layer) in ZERO_STAYS and getattr(layer, "groups", 1) == 1
        return node.op in ("placeholder", "output") or node.target in ZERO_CALLS

    return all(harmless(node) for node in graph.nodes)
