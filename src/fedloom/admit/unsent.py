"""What was not sent is not read."""

import torch
from torch import Tensor

from fedloom.types import Reply, State, column


def read_unsent_as_unchanged(model: Tensor, reply: Reply) -> Reply:
    """The model's own numbers, and zeros for extras and reports, stand where nothing was sent or arrived."""
    arrived = reply.arrived
    if arrived.device.type == "cpu" and bool(arrived.all()):  # elsewhere asking would wait for the device
        if reply.mask is None:
            return reply
        return reply._replace(params=torch.where(reply.mask, reply.params, model))
    sent = column(arrived, reply.params) if reply.mask is None else reply.mask & column(arrived, reply.mask)
    return reply._replace(
        params=torch.where(sent, reply.params, model),
        mask=reply.mask if reply.mask is None else sent,
        extras=_of_the_arrived(arrived, reply.extras),
        report=_of_the_arrived(arrived, reply.report),
    )


def _of_the_arrived(arrived: Tensor, values: State) -> State:
    """The values [C, ...] with zeros where nothing arrived."""
    return {name: torch.where(column(arrived, v), v, torch.zeros_like(v)) for name, v in values.items()}
