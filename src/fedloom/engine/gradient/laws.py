"""Dropout of every kind, attention with dropout and recurrent layers with dropout between them, from a key.

A law takes `Draw` and the function's own arguments. It answers what the function would, or None where nothing is drawn.
Places along the first axis count first, so that a short batch draws what a padded one does.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch import Tensor

from fedloom.engine.gradient.draw import Draw, Law, batched, no_generator
from fedloom.engine.gradient.random_tensors import TENSORS

SELU = -1.7580993408473766  # what alpha dropout puts in place of a dropped number: -scale * alpha of SELU


def dropout(draw: Draw, input: Tensor, p: float, train: bool | None) -> Tensor | None:
    """Single numbers are dropped."""
    return draw.dropped(input, p) if train and p > 0 else None


def feature_dropout(draw: Draw, input: Tensor, p: float, train: bool) -> Tensor | None:
    """Whole channels are dropped."""
    return draw.dropped(input, p, _channels(input)) if train and p > 0 else None


def alpha_dropout(draw: Draw, input: Tensor, p: float, train: bool, features: bool = False) -> Tensor | None:
    """Numbers, or whole channels, become SELU's lowest; mean and variance stay."""
    if not train or p == 0:
        return None
    kept = (draw.uniform(input, _channels(input) if features else None) >= p).to(input.dtype)
    if p >= 1:
        return input * kept
    a = 1 / sqrt((1 - p) * (1 + p * SELU**2))
    return a * (input * kept + SELU * (1 - kept)) - a * p * SELU


def _channels(x: Tensor) -> tuple[int, ...]:
    """The shape of one number for each channel of each example."""
    return (*x.shape[:2], *(1,) * (x.dim() - 2))


def feature_alpha_dropout(draw: Draw, input: Tensor, p: float, train: bool) -> Tensor | None:
    """Alpha dropout of whole channels."""
    return alpha_dropout(draw, input, p, train, features=True)


def native_dropout(draw: Draw, input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor] | None:
    """Dropout that also gives the mask."""
    if not train or p == 0:
        return None
    kept = draw.uniform(input) >= p
    return input * kept.to(input.dtype) / (1 - p if p < 1 else 1), kept


def rrelu(
    draw: Draw, input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> Tensor | None:
    """A slope between `lower` and `upper` for each number below zero."""
    no_generator(draw, generator)
    if not training:
        return None
    slope = lower + (upper - lower) * draw.uniform(input).to(input.dtype)
    return torch.where(input < 0, input * slope, input)


def attention(
    draw: Draw,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    """Attention written out, with dropout of its weights."""
    if dropout_p == 0:
        return None
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        boolean = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if boolean else scores + attn_mask
        nothing = (scores == -torch.inf).all(-1, keepdim=True)  # a place that may look at no other answers zeros
        weights = scores.masked_fill(nothing, 0).softmax(-1).masked_fill(nothing, 0)
    else:
        weights = scores.softmax(-1)
    return draw.dropped(weights, dropout_p) @ value


def recurrent(draw: Draw, *args: Any) -> Any:
    """Recurrent layers one by one, with dropout between them."""
    packed = isinstance(args[3], list | tuple)  # (data, sizes, state, weights, ...) or (input, state, weights, ...)
    head, (state, weights, bias, layers, p, train, both, *first) = args[: 1 + packed], args[1 + packed :]
    if not train or p == 0 or layers < 2:
        return None
    if any(map(batched, weights)):
        raise NotImplementedError("vmap would run torch's recurrent layers client by client")
    x, several = head[0], isinstance(state, list | tuple)  # an LSTM's state is a pair
    states, ways = list(state) if several else [state], 2 if both else 1
    each, found = len(weights) // layers, []
    for layer in range(layers):
        own = [value[layer * ways : (layer + 1) * ways].contiguous() for value in states]
        some = list(weights[layer * each : (layer + 1) * each])
        x, *last = draw.function(x, *head[1:], own if several else own[0], some, bias, 1, 0.0, train, both, *first)
        found.append(last)
        if layer + 1 < layers:
            turned = not packed and not (first and first[0])  # places come before examples
            x = draw.dropped(x.transpose(0, 1), p).transpose(0, 1) if turned else draw.dropped(x, p)
    return (x, *(torch.cat(values) for values in zip(*found)))


def _in_place(law: Law) -> Law:
    """The form of a function that writes into its input."""

    def write(draw: Draw, input: Tensor, *args: Any, **options: Any) -> Tensor | None:
        found = law(draw, input, *args, **options)
        return None if found is None else input.copy_(found)

    return write


_DROPOUTS: dict[str, Law] = {
    "dropout": dropout, "feature_dropout": feature_dropout, "alpha_dropout": alpha_dropout,
    "feature_alpha_dropout": feature_alpha_dropout, "rrelu": rrelu,
}  # fmt: skip
LAWS: dict[str, Law] = {
    **TENSORS,
    **_DROPOUTS,
    **{f"{name}_": _in_place(law) for name, law in _DROPOUTS.items()},
    "native_dropout": native_dropout,
    "scaled_dot_product_attention": attention,
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), recurrent),
}
