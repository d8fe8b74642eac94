"""Means and norms over a cohort's rows [C, P] that parts of several slots compute."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.accel.machine import own_kernels
from fedloom.core.types import Reply, column


def coverage_mean(model: Tensor, reply: Reply, weight: Tensor) -> Tensor:
    """The mean per number over its senders [P], weighted by `weight` [C]; numbers that nobody sent stay.

    `weight` is 0 for replies that did not arrive. Numbers of `reply` that were not sent already equal the model's, so
    they add no change. `reply.weight` multiplies it, for a row or for each number of it.
    """
    if reply.weight is not None and reply.weight.dim() == 2:
        return _mean_by_number(model, reply, column(weight, reply.params) * reply.weight)
    if reply.weight is not None:
        weight = weight * reply.weight
    weight, total = _normalised(weight)
    if reply.mask is None:
        return torch.where(total > 0, weight @ reply.params, model)
    if own_kernels(model.device.type) and model.dtype == torch.float32:
        from fedloom.accel.mean_kernel import masked_mean

        return masked_mean(model, reply.params, reply.mask, weight, sparse=False)
    covered = weight @ reply.mask.to(model.dtype)  # [P]
    change = weight @ (reply.params - model)
    return model.addcdiv(change, covered.masked_fill(covered == 0, 1))


def _mean_by_number(model: Tensor, reply: Reply, weight: Tensor) -> Tensor:
    """The coverage mean where every number has a weight of its own [C, P]."""
    weight = weight if reply.mask is None else torch.where(reply.mask, weight, 0)
    total = weight.sum(0)
    return model.addcdiv((weight * (reply.params - model)).sum(0), total.masked_fill(total == 0, 1))


def uniform_mean(model: Tensor, reply: Reply) -> Tensor:
    """The coverage mean with equal weights for all replies that arrived [P]."""
    return coverage_mean(model, reply, reply.arrived.to(model.dtype))


def plain_mean(model: Tensor, reply: Reply) -> Tensor:
    """The mean of the sparse models that arrived [P]: numbers not sent count as 0; `model` if nothing arrived."""
    weight, total = _normalised(reply.arrived.to(model.dtype))
    if reply.mask is not None and own_kernels(model.device.type) and model.dtype == torch.float32:
        from fedloom.accel.mean_kernel import masked_mean

        return masked_mean(model, reply.params, reply.mask, weight, sparse=True)
    return torch.where(total > 0, weight @ as_sparse(reply), model)


def _normalised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [C] that add up to 1, and their sum before []; all stay 0 where the sum is 0."""
    total = weight.sum()
    return weight / total.clamp(min=torch.finfo(weight.dtype).tiny), total


def as_sparse(reply: Reply) -> Tensor:
    """The models as they were sent [C, P], zero in all other places."""
    return reply.params if reply.mask is None else torch.where(reply.mask, reply.params, 0)


def clipped(change: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """Changes [C, P] cut to an l2 norm of `bound`, and their norms before [C]; one whose norm overflows becomes 0."""
    norm = torch.linalg.vector_norm(change, dim=1)
    return change * column((bound / norm).clamp(max=1), change), norm
