"""Rules of layers with tensors: what each does to neurons.

The channels of one group of a grouped convolution are cut together (depthwise: a channel and its outputs). Group norm
keeps its number of groups, which must divide the channels that are left.
"""

from math import prod

import torch
from torch import Tensor

from fedloom.neurons.ids import along, axis_of, spread
from fedloom.neurons.wiring import Call


def linear(call: Call) -> Tensor:
    """Open neurons along the last axis."""
    inputs, outputs = along(call.args[0], -1), call.open(call.layer.out_features)
    positions = prod(call.shape[:-1])
    call.bind("weight", {0: outputs, 1: inputs}, weight=True, positions=positions)
    call.bind("bias", {0: outputs}, weight=True)
    call.resize("in_features", inputs)
    call.resize("out_features", outputs)
    return spread(outputs, call.shape, -1)


def convolution(call: Call) -> Tensor:
    """Open neurons along axis 1; the groups of a grouped convolution stay whole."""
    inputs, outputs, groups = along(call.args[0], 1), call.open(call.layer.out_channels), call.layer.groups
    positions = prod(call.shape) // call.shape[1]
    axes = {0: outputs, 1: inputs}
    if groups > 1:
        blocks = torch.cat([inputs.view(groups, -1), outputs.view(groups, -1)], 1)
        call.wiring.unite(blocks, blocks[:, :1].expand_as(blocks))
        call.resize("groups", blocks[:, 0])
        axes = {0: outputs}
    call.bind("weight", axes, weight=True, positions=positions)
    call.bind("bias", {0: outputs}, weight=True)
    call.resize("in_channels", inputs)
    call.resize("out_channels", outputs)
    return spread(outputs, call.shape, 1)


def embedding(call: Call) -> Tensor:
    """Open neurons along the last axis; words are never cut."""
    outputs = call.open(call.layer.embedding_dim)
    call.bind("weight", {1: outputs}, output=1, weight=True)
    call.resize("embedding_dim", outputs)
    return spread(outputs, call.shape, -1)


def channel_norm(call: Call) -> Tensor:
    """Batch and instance norm: each channel, with its statistics, by itself."""
    ids = along(call.args[0], 1)
    for tensor in ("weight", "bias", "running_mean", "running_var"):
        call.bind(tensor, {0: ids})
    call.resize("num_features", ids)
    return spread(ids, call.shape, 1)


def group_norm(call: Call) -> Tensor:
    """Statistics over the channels of a group; with one channel per group any channel can be cut."""
    ids = along(call.args[0], 1)
    call.bind("weight", {0: ids})
    call.bind("bias", {0: ids})
    call.resize("num_channels", ids)
    if call.layer.num_groups == call.layer.num_channels:
        call.resize("num_groups", ids)
    else:
        call.wiring.across[call.name] = ids
        call.wiring.divided[call.name] = call.layer.num_groups, ids
    return spread(ids, call.shape, 1)


def layer_norm(call: Call) -> Tensor:
    """Statistics over the last axes, and so over neurons if theirs is among them."""
    x: Tensor = call.args[0]
    axis = axis_of(x)
    part = -1 if axis is None else axis - (x.dim() - len(call.layer.normalized_shape))
    if axis is not None and part >= 0:
        ids = along(x, axis)
        call.bind("weight", {part: ids}, output=part)
        call.bind("bias", {part: ids}, output=part)
        call.resize("normalized_shape", ids, part)
        call.wiring.across[call.name] = ids
    return x


def prelu(call: Call) -> Tensor:
    """Elementwise, with one slope for all or one per channel."""
    x: Tensor = call.args[0]
    if call.layer.num_parameters > 1:
        call.bind("weight", {0: along(x, 1)})
        call.resize("num_parameters", along(x, 1))
    return x
