"""Is a network one row of convolutions and linear layers? What some ways to train it can take as a whole."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.func import functional_call

from fedloom.core.types import Loss, Setting
from fedloom.layout import Layout, flatten


class Stage(NamedTuple):
    """A layer with weights and what follows it. Max-pooling and ReLU give the same numbers in either order."""

    name: str
    bias: bool
    padding: tuple[int, int] | None = None  # of a convolution; None: the layer is linear
    pool: bool = False  # windows of 2 x 2
    relu: bool = False


_known: WeakKeyDictionary[nn.Module, tuple[Stage, ...] | None] = WeakKeyDictionary()


def stages_of(setting: Setting) -> tuple[Stage, ...] | None:
    """The network's layers, if all it has is plain convolutions, then linear layers, and a cross-entropy."""
    if setting.module not in _known:
        found = _read(setting.module, setting.layout, setting.loss)
        _known[setting.module] = found if found is not None and _answers_alike(found, setting) else None
    return _known[setting.module]


def _answers_alike(stages: tuple[Stage, ...], setting: Setting) -> bool:
    """Whether the layers as they were read give the network's own outputs for two examples."""
    module, x = setting.module.eval(), setting.example.double()
    tensors = {name: t.detach().double() for name, t in setting.layout.split(flatten(module, setting.layout)).items()}
    with torch.no_grad():
        theirs, ours = functional_call(module, tensors, (x,)), x
        for stage in stages:
            weight, bias = tensors[f"{stage.name}.weight"], tensors.get(f"{stage.name}.bias")
            if stage.padding is None:
                ours = F.linear(ours.flatten(1), weight, bias)
            else:
                ours = F.conv2d(ours, weight, bias, padding=stage.padding)
            ours = F.max_pool2d(ours, 2) if stage.pool else ours
            ours = F.relu(ours) if stage.relu else ours
    return torch.allclose(ours, theirs)


def _read(module: nn.Module, layout: Layout, loss: Loss) -> tuple[Stage, ...] | None:
    """The layers in order; None: there is something else."""
    try:
        graph = fx.Tracer().trace(module)
    except Exception:  # noqa: BLE001  any network may break tracing in its own way
        return None
    stages: list[Stage] = []
    flat = False
    row = _row(graph)
    if row is None:
        return None
    for node in row:
        layer = module.get_submodule(str(node.target)) if node.op == "call_module" else None
        last = stages[-1] if stages else None
        if _flattens(node, layer):
            flat = True
        elif type(layer) is nn.Linear and flat:
            stages.append(Stage(str(node.target), layer.bias is not None))
        elif type(layer) is nn.Conv2d and not flat and (padding := plain_padding(layer)) is not None:
            stages.append(Stage(str(node.target), layer.bias is not None, padding))
        elif _rectifies(node, layer) and last is not None and not last.relu:
            stages[-1] = last._replace(relu=True)
        elif isinstance(layer, nn.MaxPool2d) and last is not None and not (flat or last.pool) and halves(layer):
            stages[-1] = last._replace(pool=True)
        else:
            return None
    names = {f"{stage.name}.{kind}" for stage in stages for kind in ("weight", "bias")[: 1 + stage.bias]}
    once = len({stage.name for stage in stages}) == len(stages) > 0
    exact = once and names == set(layout.names) == set(layout.parameters)
    ends = exact and stages[-1].padding is None and not stages[-1].relu
    return tuple(stages) if ends and _is_cross_entropy(loss) else None


def _row(graph: fx.Graph) -> list[fx.Node] | None:
    """The nodes between input and output, if each reads the one before and nothing else does."""
    nodes = list(graph.nodes)
    for before, node in pairwise(nodes):
        if len(before.users) != 1 or not node.args or node.args[0] is not before:
            return None
    return nodes[1:-1]


def plain_padding(conv: nn.Conv2d) -> tuple[int, int] | None:
    """The padding of a convolution that moves place by place; None: it is another kind."""
    plain = conv.stride == conv.dilation == (1, 1) and conv.groups == 1 and conv.padding_mode == "zeros"
    if not plain or isinstance(conv.padding, str):
        return None
    down, right = conv.padding
    return down, right


def halves(pool: nn.MaxPool2d) -> bool:
    """Windows of 2 x 2 side by side?"""
    sizes = [(size, size) if isinstance(size, int) else tuple(size) for size in
             (pool.kernel_size, pool.stride, pool.padding, pool.dilation)]  # fmt: skip
    return sizes == [(2, 2), (2, 2), (0, 0), (1, 1)] and not pool.ceil_mode and not pool.return_indices


def _flattens(node: fx.Node, layer: nn.Module | None) -> bool:
    """All of an example's axes into one?"""
    if isinstance(layer, nn.Flatten):
        return (layer.start_dim, layer.end_dim) == (1, -1)
    return node.target in (torch.flatten, "flatten") and node.args[1:] == (1,) and not node.kwargs


def _rectifies(node: fx.Node, layer: nn.Module | None) -> bool:
    plain = node.target in (torch.relu, F.relu, "relu") and len(node.args) == 1
    return type(layer) is nn.ReLU or (plain and not node.kwargs.get("inplace"))


def _is_cross_entropy(loss: Loss) -> bool:
    """Tried on a few numbers."""
    outputs = torch.arange(12, dtype=torch.float64).sin().view(4, 3) * 3
    target = torch.tensor([0, 2, 1, 2])
    found = loss(outputs, target)
    return found.shape == (4,) and torch.allclose(found, F.cross_entropy(outputs, target, reduction="none"))
