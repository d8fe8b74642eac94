"""The hash of a network's base, by which runs and nodes refuse another one."""

from __future__ import annotations

from hashlib import sha256

from torch import nn

from fedloom.layout import Layout, base_of
from fedloom.runs.checkpoint.tensors import bytes_of


def hash_of_base(network: nn.Module, layout: Layout) -> str:
    """The hash of all tensors outside the vector: names, types, shapes and numbers; empty if there are none."""
    base = base_of(network, layout)
    if not base:
        return ""
    digest = sha256()
    for name, value in sorted(base.items()):
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        if value.numel():
            digest.update(bytes_of(value))
    return digest.hexdigest()
