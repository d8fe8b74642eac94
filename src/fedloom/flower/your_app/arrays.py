"""A model as Flower's plain arrays, and arrays from a client checked and read as a model.

`Array.numpy()` trusts the size that the bytes claim. Here names, types, shapes and lengths are checked before anything
is allocated.
"""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor, nn

from fedloom.codec.rejected import Rejected
from fedloom.layout import Layout, load

MAGIC = b"\x93NUMPY\x01\x00"  # and the version that numpy writes for all but structured arrays


def to_arrays(module: nn.Module, layout: Layout, model: Tensor) -> ArrayRecord:
    """The whole state dict of a model [P], as any client loads it; `module`, which is overwritten, has the base."""
    return ArrayRecord(load(module, layout, model).state_dict())


def from_arrays(record: ArrayRecord, module: nn.Module, layout: Layout) -> Tensor:
    """The vector [P] of a state dict of this module; `Rejected` if it is anything else."""
    state = module.state_dict()
    if set(record) != set(state):
        odd = sorted(set(record) ^ set(state))
        raise Rejected("header", f"the arrays are not the network's: {', '.join(map(repr, odd[:3]))} missing or new.")
    kinds = {name: np.dtype(str(state[name].dtype).removeprefix("torch.")) for name in layout.names}
    found = {name: read_array(name, record[name], tuple(state[name].shape), kinds[name]) for name in layout.names}
    return layout.join({name: torch.from_numpy(value.copy()) for name, value in found.items()}, 0)


def read_array(name: str, array: Array, shape: tuple[int, ...], kind: np.dtype[np.generic]) -> NDArray[np.generic]:
    """An array of exactly this shape and kind, as a view of its bytes; its header is compared, not parsed."""
    if array.stype != "numpy.ndarray":
        raise Rejected("header", f"'{name}' is serialised as {array.stype!r}; expected 'numpy.ndarray'.")
    if array.dtype != str(kind):
        raise Rejected("dtype", f"'{name}' is {array.dtype}; expected {kind}.")
    if tuple(array.shape) != shape:
        raise Rejected("shape", f"'{name}' has shape {tuple(array.shape)}; expected {shape}.")
    start = 10 + int.from_bytes(array.data[8:10], "little")
    header = array.data[:8], array.data[10:start].rstrip(b" \n")
    texts = [
        f"{{'descr': '{kind.str}', 'fortran_order': {flag}, 'shape': {shape}, }}".encode() for flag in (False, True)
    ]
    if header not in [(MAGIC, text) for text in texts]:
        raise Rejected("header", f"'{name}' does not begin as numpy writes an array of {kind} and shape {shape}.")
    needed = prod(shape) * kind.itemsize
    if len(array.data) - start != needed:
        raise Rejected("size", f"'{name}' has {len(array.data) - start} bytes; expected {needed}.")
    flat: NDArray[np.generic] = np.frombuffer(array.data, kind, offset=start)
    return flat.reshape(shape, order="C" if header[1] == texts[0] else "F")


def size_of(record: ArrayRecord) -> int:
    """Bytes of the arrays as they travel, without their names."""
    return sum(len(array.data) for array in record.values())
