"""What was not sent is not read."""

import torch
from torch import Tensor

from fedloom.types import Reply, State, column


def read_unsent_as_unchanged(model: Tensor, reply: Reply, whole: bool = False) -> Reply:
    """The model's own numbers, and zeros for extras and reports, stand where nothing was sent or arrived.

    `whole`: everything is known to have arrived. On an accelerator asking would wait for the device.
    """
    arrived = reply.arrived
    if whole or (arrived.device.type == "cpu" and bool(arrived.all())):
        if reply.mask is None:
            return reply
        return reply._replace(params=torch.where(reply.mask, reply.params, model))
    sent = column(arrived, reply.params) if reply.mask is None else reply.mask & column(arrived, reply.mask)
    lost = ~arrived
    return reply._replace(
        params=torch.where(sent, reply.params, model),
        mask=reply.mask if reply.mask is None else sent,
        extras=_without(lost, reply.extras),
        report=_without(lost, reply.report),
    )


def _without(lost: Tensor, values: State) -> State:
    """The values [C, ...] with zeros where nothing arrived."""
    return {name: v.masked_fill(column(lost, v), 0) for name, v in values.items()}
