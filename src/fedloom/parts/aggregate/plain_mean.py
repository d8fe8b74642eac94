"""How do replies become the next model? By their plain mean, in which a number that was not sent is a zero."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.accel.machine import own_kernels
from fedloom.core.part import Aggregate
from fedloom.core.types import Reply, Setting, State


def as_sparse(reply: Reply) -> Tensor:
    """The models as they were sent [C, P], zero in all other places."""
    return reply.params if reply.mask is None else torch.where(reply.mask, reply.params, 0)


@dataclass(frozen=True)
class PlainMean(Aggregate):
    """`(1/m) sum x_i` of the m sparse models at hand; a number that nobody sent becomes 0, unless nothing arrived."""

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Zeros count."""
        weight = reply.arrived.to(model.dtype)
        total = weight.sum()
        weight = weight / total.clamp(min=torch.finfo(model.dtype).tiny)
        if reply.mask is not None and own_kernels(model.device.type) and model.dtype == torch.float32:
            from fedloom.accel.mean_kernel import masked_mean

            return masked_mean(model, reply.params, reply.mask, weight, sparse=True), memory
        return torch.where(total > 0, weight @ as_sparse(reply), model), memory
