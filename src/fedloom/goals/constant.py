"""Constants on a device, made once: copies from the host cannot be captured in a CUDA graph."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=32)
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The values as a tensor; nobody may change it."""
    return torch.tensor(values, dtype=dtype, device=device)
