"""The weights that a run began with, where clients keep models of their own that begin with them.

Such a client is sent a part of the model and has the rest itself: by the seed where the network is newly drawn, else by
the message that asks its node whom it hosts. Every message has their hash.
"""

from __future__ import annotations

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor

from fedloom.codec import Rejected, base_hash
from fedloom.method import Method
from fedloom.runs.checkpoint.tensors import pack

START, MODEL = "start", "model"  # the fact with the hash; the tensor


def needed(method: Method) -> bool:
    """Whether clients have parts of the network that they are never sent."""
    traits = method.local.traits
    return traits.needs_whole or traits.keeps_network


def packed(weights: Tensor) -> bytes:
    """The weights [P] as bytes."""
    return b"".join(bytes(part) for part in pack({MODEL: weights}))


def unpacked(data: bytes, wanted: str) -> Tensor:
    """The weights [P], refused unless they have the hash `wanted`."""
    try:
        weights = load_tensors(data)[MODEL]
    except (SafetensorError, KeyError, ValueError) as problem:
        raise Rejected("base", f"the weights that the run began with cannot be read ({problem}).") from None
    if base_hash(weights) != wanted:
        raise Rejected("base", "the weights that the run began with do not have the hash that the message says.")
    return weights
