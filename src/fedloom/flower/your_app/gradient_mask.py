"""Which gradients does a client's own training have to leave out? The mod says so, and `train` asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor, nn

_TRAINS: ContextVar[dict[str, Tensor] | None] = ContextVar("trains", default=None)  # by name; None: everything


@contextmanager
def training_only(trains: dict[str, Tensor] | None) -> Iterator[None]:
    """Within, `hold_gradients` leaves only these numbers to be trained."""
    token = _TRAINS.set(trains)
    try:
        yield
    finally:
        _TRAINS.reset(token)


def hold_gradients(model: nn.Module) -> None:
    """From now on the gradients of this model's held numbers are 0."""
    trains = _TRAINS.get()
    if trains is None:
        return
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and name in trains:
            mask = trains[name].to(parameter.device)
            parameter.register_hook(lambda gradient, mask=mask: gradient.masked_fill(~mask, 0))
