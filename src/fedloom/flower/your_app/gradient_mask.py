"""Gradient masks for a client's own training: the mod sets them, and the training function applies them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor, nn

_MASKS: ContextVar[dict[str, Tensor] | None] = ContextVar("masks", default=None)  # by parameter; None: train everything


@contextmanager
def train_only(masks: dict[str, Tensor] | None) -> Iterator[None]:
    """Within, `mask_gradients` lets only these numbers train."""
    token = _MASKS.set(masks)
    try:
        yield
    finally:
        _MASKS.reset(token)


def mask_gradients(model: nn.Module) -> None:
    """From now on the gradients of this model's frozen numbers are 0."""
    masks = _MASKS.get()
    if masks is None:
        return
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and name in masks:
            mask = masks[name].to(parameter.device)
            parameter.register_hook(lambda gradient, mask=mask: gradient.masked_fill(~mask, 0))
