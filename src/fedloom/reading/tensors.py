"""Tensors of safetensors files."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from fedloom.errors import BadData
from fedloom.reading.cap import reason


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a file, mapped from it: the library checks that shapes fit the file's length."""
    try:
        return dict(load_file(file))
    except Exception as error:  # what damaged files raise is not documented
        raise BadData(f"'{file}' cannot be read as safetensors ({reason(error)}); copy it again.") from error
