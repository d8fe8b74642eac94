"""Precision of matrix products: PyTorch's settings, or one of three choices for the duration of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

Precision = Literal["default", "float32", "tf32", "bf16"]


@contextmanager
def computing(precision: Precision) -> Iterator[None]:
    """Set PyTorch's precision meanwhile; `default` changes nothing, nor does `bf16`, which our own layers round."""
    if precision in ("default", "bf16"):
        yield
        return
    old: list[tuple[Any, bool | None]] = [(place, _allowed(place)) for place in _switches()]
    new: list[tuple[Any, str]] = [(place, place.fp32_precision) for place in _named()]
    allow, name = precision == "tf32", "tf32" if precision == "tf32" else "ieee"
    try:
        _set([(place, allow) for place, _ in old], [(place, name) for place, _ in new])
        yield
    finally:
        _set(old, new)


def _switches() -> tuple[Any, ...]:
    """PyTorch's older settings, which our layers read."""
    return torch.backends.cuda.matmul, torch.backends.cudnn


def _named() -> tuple[Any, ...]:
    """PyTorch's newer settings, which win over the older. Both are set alike: PyTorch refuses to read a mixture."""
    return torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn  # type: ignore[attr-defined]


def _allowed(place: Any) -> bool | None:
    try:
        return bool(place.allow_tf32)
    except RuntimeError:  # a mixture was set before: only the newer settings are put back
        return None


def _set(old: list[tuple[Any, bool | None]], new: list[tuple[Any, str]]) -> None:
    for place, allow in old:
        if allow is not None:
            place.allow_tf32 = allow
    for place, name in new:
        place.fp32_precision = name


def precision_note(precision: Precision, device: torch.device) -> str | None:
    """A note on what the choice does on this device; None where there is nothing to say."""
    if device.type == "cpu" and precision == "tf32":
        return "precision tf32 changes nothing on a CPU: it computes in float32"
    if device.type == "cpu" and precision == "bf16":
        return "precision bf16 on a CPU: products of linear layers only, convolutions stay in float32"
    return None
