"""How do replies become the next model? Each number moves to the mean of those who sent it."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedloom.accel.machine import own_kernels
from fedloom.core.part import Aggregate
from fedloom.core.types import Reply, Setting, State


@dataclass(frozen=True)
class CoverageMean(Aggregate):
    """The mean per number over its senders, weighted by examples or uniformly; what nobody sent stays."""

    weigh: Literal["examples", "uniform"] = "examples"

    def __call__(self, memory: State, setting: Setting, model: Tensor, reply: Reply) -> tuple[Tensor, State]:
        """Unsent numbers of `reply` already equal the model's, so they add no change below."""
        weight = reply.arrived.to(model.dtype)
        if self.weigh == "examples":
            weight = weight * reply.report["examples"]
        total = weight.sum()
        weight = weight / total.clamp(min=torch.finfo(model.dtype).tiny)
        if reply.mask is None:
            return torch.where(total > 0, weight @ reply.params, model), memory
        if own_kernels(model.device.type) and model.dtype == torch.float32:
            from fedloom.accel.mean_kernel import masked_mean

            return masked_mean(model, reply.params, reply.mask, weight, sparse=False), memory
        covered = weight @ reply.mask.to(model.dtype)  # [P]
        change = weight @ (reply.params - model)
        return model.addcdiv(change, covered.masked_fill(covered == 0, 1)), memory
