"""Tensors as a safetensors file, written from their own memory without a copy of them all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from fedloom.core.types import State

KINDS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def pack(tensors: State) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file, tensor by tensor."""
    header, start = {}, 0
    for name, value in tensors.items():
        stop = start + value.numel() * value.element_size()
        header[name] = {"dtype": KINDS[value.dtype], "shape": list(value.shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of 8 bytes
    yield len(text).to_bytes(8, "little") + text
    for value in tensors.values():
        if value.numel():
            yield bytes_of(value)


def bytes_of(value: Tensor) -> memoryview:
    """A tensor's bytes, copied only if the tensor is not contiguous on the host."""
    plain = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return plain.numpy().data


def names(file: Path) -> list[str]:
    """The names in a safetensors file, in the order in which they were written."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        return list(json.loads(opened.read(size)))
