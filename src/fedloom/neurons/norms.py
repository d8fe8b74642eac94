"""Rules of norms: by channel, by groups of channels, or over neurons."""

from typing import Any

from torch import Tensor, nn

from fedloom.neurons.calls import Call
from fedloom.neurons.ids import along, moving, small, spread


def channel_norm(call: Call) -> Tensor:
    """Batch and instance norm: each channel, with its statistics, by itself."""
    x = call.args[0]
    ids = along(call.ids(x), 1)
    given: list[Any] = [call.argument(place, name) for place, name in enumerate(NAMES[1:], 1)]
    known = next((tensor for tensor in given if call.name_of(tensor) is not None), None)
    owner = (call.layer, call.module) if known is None else call.owner(known)
    if isinstance(owner[1], nn.modules.batchnorm._NormBase):  # its statistics may take no part in this call
        given = [getattr(owner[1], name) for name in ("weight", "bias", "running_mean", "running_var")]
    for tensor in given:
        call.bind(tensor, {0: ids})
    call.resize(owner, "num_features", ids)
    return spread(ids, call.shape, 1)


NAMES = ("input", "running_mean", "running_var", "weight", "bias")


def group_norm(call: Call) -> Tensor:
    """Statistics over the channels of a group; with one channel per group any channel can be cut."""
    ids = along(call.ids(call.args[0]), 1)
    groups, weight, bias = call.argument(1, "num_groups"), call.argument(2, "weight"), call.argument(3, "bias")
    owner = (call.layer, call.module) if weight is None else call.owner(weight)
    call.bind(weight, {0: ids})
    call.bind(bias, {0: ids})
    call.resize(owner, "num_channels", ids)
    if groups == len(ids):
        call.resize(owner, "num_groups", ids)
    else:
        call.across(ids, ())
        call.wiring.divided[call.where] = groups, ids
    return spread(ids, call.shape, 1)


def layer_norm(call: Call) -> Tensor:
    """Statistics over the last axes, and so over neurons if theirs is among them."""
    x = call.ids(call.args[0])
    over = len(call.argument(1, "normalized_shape"))
    weight, bias = call.argument(2, "weight"), call.argument(3, "bias") if call.name == "layer_norm" else None
    axes, first = moving(x), x.dim() - over
    if any(axis >= first for axis in axes):
        call.across(x, tuple(range(first, x.dim())), norm=True)
    if len(axes) == 1 and axes[0] >= first:
        part, ids = axes[0] - first, along(x, axes[0])
        call.bind(weight, {part: ids}, output=part)
        call.bind(bias, {part: ids}, output=part)
        call.resize((call.layer, call.module) if weight is None else call.owner(weight), "normalized_shape", ids, part)
        return x
    for tensor in (weight, bias):
        if tensor is not None:
            call.wiring.meets.append((call.ids(tensor)[(None,) * (x.dim() - tensor.dim())], small(x)))
    return x
