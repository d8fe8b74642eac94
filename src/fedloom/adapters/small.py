"""The two small layers that are trained in place of a frozen one, by its type."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

from torch import nn

from fedloom.errors import BadModel


class Small(NamedTuple):
    """The layers whose product is added to a frozen layer's answer."""

    a: nn.Module  # into the rank's components
    b: nn.Module  # out of them
    fan: int  # numbers that a component reads; an embedding's reads one word
    padding: int | None = None  # the word that stands for none


def of_linear(name: str, layer: Any, rank: int) -> Small:
    """Two dense layers."""
    inputs, outputs = layer.in_features, layer.out_features
    return Small(nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False), inputs)


def of_transposed(name: str, layer: Any, rank: int) -> Small:
    """Two dense layers next to a dense one of transformers, whose weight is [inputs, outputs]."""
    inputs, outputs = layer.weight.shape
    return Small(nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False), inputs)


def of_conv(name: str, layer: Any, rank: int) -> Small:
    """A convolution like the layer, and one of a single point."""
    if layer.groups != 1:
        raise BadModel(
            f"layer '{name}' is a convolution in {layer.groups} groups, which has no adapter; name other layers in "
            "adapter.targets."
        )
    kind, inputs = type(layer), layer.in_channels
    like = {key: getattr(layer, key) for key in ("kernel_size", "stride", "padding", "dilation", "padding_mode")}
    a = kind(inputs, rank, bias=False, **like)
    return Small(a, kind(rank, layer.out_channels, 1, bias=False), prod((inputs, *layer.kernel_size)))


def of_embedding(name: str, layer: Any, rank: int) -> Small:
    """A narrow embedding and a dense layer."""
    narrow = nn.Embedding(layer.num_embeddings, rank, padding_idx=layer.padding_idx)
    return Small(narrow, nn.Linear(rank, layer.embedding_dim, bias=False), 1, layer.padding_idx)


# a type's first package and its name, so that transformers need not be there
KINDS: dict[tuple[str, str], Callable[[str, Any, int], Small]] = {
    ("torch", "Linear"): of_linear,
    ("torch", "Conv1d"): of_conv,
    ("torch", "Conv2d"): of_conv,
    ("torch", "Embedding"): of_embedding,
    ("transformers", "Conv1D"): of_transposed,
}
DENSE = (of_linear, of_transposed)


def kind_of(layer: nn.Module) -> Callable[[str, Any, int], Small] | None:
    """How to make the small layers of a layer; None: there is no way for its type."""
    return KINDS.get((type(layer).__module__.partition(".")[0], type(layer).__name__))
