"""Tables of rules: one per layer type, function or method. To add one, name it here.

A rule takes a `Call`, which holds neuron ids in place of tensors, and returns the ids of the result.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fedloom.neurons import functions, layers
from fedloom.neurons.wiring import Call

Rule = Callable[[Call], Any]


def both(names: str) -> list[Any]:
    """Tensor methods, and the functions of torch of those names that exist."""
    return [kind for name in names.split() for kind in (name, getattr(torch, name, name))]


def of(home: Any, names: str) -> list[Any]:
    """Attributes of a module by these names."""
    return [getattr(home, name) for name in names.split()]


def sized(names: str) -> str:
    """These names with 1d, 2d and 3d appended."""
    return " ".join(f"{name}{size}d" for name in names.split() for size in (1, 2, 3))


POOLS = "max_pool avg_pool adaptive_max_pool adaptive_avg_pool lp_pool"
POOL_LAYERS = "MaxPool AvgPool AdaptiveMaxPool AdaptiveAvgPool LPPool ZeroPad ConstantPad ReflectionPad ReplicationPad"
ACTIVATIONS = "ReLU ReLU6 LeakyReLU ELU SELU CELU GELU SiLU Mish Sigmoid Tanh Hardtanh Hardsigmoid Hardswish Softplus"
SOFTER = "Softsign Softshrink Hardshrink Tanhshrink LogSigmoid RReLU Threshold Identity Dropout AlphaDropout"
ACTIVATION_FUNCTIONS = "relu relu6 leaky_relu elu selu celu gelu silu mish hardtanh hardsigmoid hardswish softplus"
SOFTER_FUNCTIONS = "softsign softshrink hardshrink tanhshrink logsigmoid rrelu threshold dropout alpha_dropout"

LAYERS: dict[type[nn.Module], Rule] = {
    kind: rule
    for rule, kinds in (
        (layers.linear, [nn.Linear]),
        (layers.convolution, of(nn, sized("Conv"))),
        (layers.embedding, [nn.Embedding, nn.EmbeddingBag]),
        (layers.channel_norm, of(nn, sized("BatchNorm InstanceNorm"))),
        (layers.group_norm, [nn.GroupNorm]),
        (layers.layer_norm, [nn.LayerNorm, nn.RMSNorm]),
        (layers.prelu, [nn.PReLU]),
        (functions.softmax, [nn.Softmax, nn.LogSoftmax]),
        (functions.spatial, of(nn, f"{sized(POOL_LAYERS)} Upsample")),
        (functions.reshaping, [nn.Flatten]),
        (functions.unflatten, [nn.Unflatten]),
        (functions.elementwise, of(nn, f"{ACTIVATIONS} {SOFTER} {sized('Dropout')}")),
    )
    for kind in kinds
}

FUNCTIONS: dict[Any, Rule] = {
    kind: rule
    for rule, kinds in (
        (functions.elementwise, of(F, f"{ACTIVATION_FUNCTIONS} {SOFTER_FUNCTIONS} {sized('dropout')}")),
        (functions.elementwise, of(operator, "add sub mul truediv neg pow iadd isub imul itruediv eq ne lt le gt ge")),
        (functions.elementwise, both("relu relu_ sigmoid sigmoid_ tanh tanh_ exp log sqrt square abs neg clamp pow")),
        (functions.elementwise, both("add add_ sub sub_ mul mul_ div div_ maximum minimum where masked_fill erf")),
        (functions.elementwise, both("clone detach zeros_like ones_like clamp_min clamp_max sign rsqrt nan_to_num")),
        (functions.elementwise, ["contiguous", "to", "float", "double", "half", "type_as", "expand_as", "clamp_"]),
        (functions.softmax, [F.softmax, F.log_softmax, *both("softmax log_softmax")]),
        (functions.spatial, [*of(F, sized(POOLS)), F.interpolate]),
        (functions.spatial, of(torch, "max_pool1d max_pool2d max_pool3d avg_pool1d adaptive_avg_pool1d")),
        (functions.reduction, both("mean sum amax amin max min var std prod logsumexp")),
        (functions.reshaping, both("flatten permute transpose movedim squeeze unsqueeze t")),
        (functions.sizing, both("view reshape expand")),
        (functions.unflatten, both("unflatten")),
        (functions.picking, [operator.getitem, *both("chunk split select narrow unbind")]),
        (functions.concatenation, [torch.cat, torch.concat, torch.concatenate]),
        (functions.padding, [F.pad]),
    )
    for kind in kinds
}
