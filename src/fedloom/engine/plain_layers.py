"""The layers of a network that is a row of plain convolutions, then linear layers."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.func import functional_call

from fedloom.core.types import Setting
from fedloom.engine.gradient.graph import Tracer
from fedloom.layout import Layout, flatten


class PlainLayer(NamedTuple):
    """A layer with weights, with the max-pooling and ReLU after it; they give the same numbers in either order."""

    name: str
    bias: bool
    padding: tuple[int, int] | None = None  # of a convolution; None: the layer is linear
    pool: bool = False  # windows of 2 x 2
    relu: bool = False


_known: WeakKeyDictionary[nn.Module, tuple[PlainLayer, ...] | None] = WeakKeyDictionary()


def plain_layers(setting: Setting) -> tuple[PlainLayer, ...] | None:
    """The network's layers; None: it is not a row of plain convolutions, then linear layers."""
    if setting.module not in _known:
        found = _read(setting.module, setting.layout)
        _known[setting.module] = found if found is not None and _outputs_agree(found, setting) else None
    return _known[setting.module]


def _outputs_agree(layers: tuple[PlainLayer, ...], setting: Setting) -> bool:
    """Whether the layers as read give the network's own outputs for two examples."""
    module, x = setting.module.eval(), setting.example.double()
    tensors = {name: t.detach().double() for name, t in setting.layout.split(flatten(module, setting.layout)).items()}
    with torch.no_grad():
        theirs, ours = functional_call(module, tensors, (x,)), x
        for layer in layers:
            weight, bias = tensors[f"{layer.name}.weight"], tensors.get(f"{layer.name}.bias")
            if layer.padding is None:
                ours = F.linear(ours.flatten(1), weight, bias)
            else:
                ours = F.conv2d(ours, weight, bias, padding=layer.padding)
            ours = F.max_pool2d(ours, 2) if layer.pool else ours
            ours = F.relu(ours) if layer.relu else ours
    return torch.allclose(ours, theirs)


def _read(module: nn.Module, layout: Layout) -> tuple[PlainLayer, ...] | None:
    """The layers in order; None: the network has other parts."""
    try:
        graph = Tracer().trace(module)  # which sees dropout that is keyed, though it does nothing in evaluation
    except Exception:  # noqa: BLE001  any network may break tracing in its own way
        return None
    layers: list[PlainLayer] = []
    flat = False
    row = _row(graph)
    if row is None:
        return None
    for node in row:
        part = module.get_submodule(str(node.target)) if node.op == "call_module" else None
        last = layers[-1] if layers else None
        if _flattens(node, part):
            flat = True
        elif type(part) is nn.Linear and flat:
            layers.append(PlainLayer(str(node.target), part.bias is not None))
        elif type(part) is nn.Conv2d and not flat and (padding := plain_padding(part)) is not None:
            layers.append(PlainLayer(str(node.target), part.bias is not None, padding))
        elif _rectifies(node, part) and last is not None and not last.relu:
            layers[-1] = last._replace(relu=True)
        elif isinstance(part, nn.MaxPool2d) and last is not None and not (flat or last.pool) and pools_by_two(part):
            layers[-1] = last._replace(pool=True)
        else:
            return None
    names = {f"{layer.name}.{kind}" for layer in layers for kind in ("weight", "bias")[: 1 + layer.bias]}
    once = len({layer.name for layer in layers}) == len(layers) > 0
    exact = once and names == set(layout.names) == set(layout.parameters)
    ends = exact and layers[-1].padding is None and not layers[-1].relu
    return tuple(layers) if ends else None


def _row(graph: fx.Graph) -> list[fx.Node] | None:
    """The nodes between input and output, if the output of each is read by the next node alone; else None."""
    nodes = list(graph.nodes)
    for before, node in pairwise(nodes):
        if len(before.users) != 1 or not node.args or node.args[0] is not before:
            return None
    return nodes[1:-1]


def plain_padding(conv: nn.Conv2d) -> tuple[int, int] | None:
    """The padding of a convolution with stride 1, one group and no dilation; None: of any other."""
    plain = conv.stride == conv.dilation == (1, 1) and conv.groups == 1 and conv.padding_mode == "zeros"
    if not plain or isinstance(conv.padding, str):
        return None
    down, right = conv.padding
    return down, right


def pools_by_two(pool: nn.MaxPool2d) -> bool:
    """Whether the windows are of 2 x 2 and do not overlap."""
    sizes = [(size, size) if isinstance(size, int) else tuple(size) for size in
             (pool.kernel_size, pool.stride, pool.padding, pool.dilation)]  # fmt: skip
    return sizes == [(2, 2), (2, 2), (0, 0), (1, 1)] and not pool.ceil_mode and not pool.return_indices


def _flattens(node: fx.Node, layer: nn.Module | None) -> bool:
    """Whether the node flattens all axes of an example."""
    if isinstance(layer, nn.Flatten):
        return (layer.start_dim, layer.end_dim) == (1, -1)
    return node.target in (torch.flatten, "flatten") and node.args[1:] == (1,) and not node.kwargs


def _rectifies(node: fx.Node, layer: nn.Module | None) -> bool:
    """Whether the node is a ReLU."""
    plain = node.target in (torch.relu, F.relu, "relu") and len(node.args) == 1
    return type(layer) is nn.ReLU or (plain and not node.kwargs.get("inplace"))
