"""Batch norm of a batch with one number per channel, such as a client's last batch of one example."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

NORMS = nn.modules.batchnorm._BatchNorm


class LoneNorms(TorchFunctionMode):
    """Normalises one number per channel by the running statistics, which stay; torch refuses such a batch.

    A layer without running statistics answers its bias, as for a number that equals its mean.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a call, in evaluation if it is a batch norm of one number per channel."""
        kwargs = kwargs or {}
        if func is F.batch_norm:
            return _batch_norm(*args, **kwargs)
        return func(*args, **kwargs)


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`F.batch_norm`."""
    if training and input.numel() == input.shape[1]:
        training = False
        if running_mean is None:
            running_mean, running_var = input.new_zeros(input.numel()), input.new_ones(input.numel())
            input = input - input
    return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def has_norms(module: nn.Module) -> bool:
    """Whether a network has batch norm."""
    return any(isinstance(part, NORMS) for part in module.modules())
