"""Relative sizes and masked changes, for the rules that correct client drift."""

import torch
from torch import Tensor

from fedloom.core.types import Reply, Setting, State, Task


def relative_size(setting: Setting, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """The relative number of examples `w_i = n_i / mean n` of each of the cohort [C]."""
    examples = setting.fleet.examples.to(dtype)
    return examples[ids] / examples.mean()


def trained_only(change: Tensor, trained: int) -> Tensor:
    """A change [..., P], zero in running statistics."""
    if trained == change.shape[-1]:
        return change
    return torch.cat((change[..., :trained], torch.zeros_like(change[..., trained:])), -1)


def inside(task: Task, change: Tensor) -> Tensor:
    """A change [C, P], zero outside what the client was sent and in running statistics."""
    if task.mask is not None:
        change = torch.where(task.mask, change, 0)
    return trained_only(change, task.trained)


def mean_drift(memory: State, setting: Setting, old: Tensor, reply: Reply) -> Tensor:
    """The fleet's mean of `h_i` after this round [P]: `h_i += w_i - w_global` for the replies that arrived."""
    drift = (reply.arrived.to(old.dtype) / setting.fleet.size) @ (reply.params - old)
    return memory["drift"] + trained_only(drift, setting.layout.trained)


def add_drift(new: Tensor, old: Tensor, drift: Tensor, reply: Reply) -> Tensor:
    """The aggregated model plus the mean drift [P]; the old model if nothing arrived."""
    return torch.where(reply.arrived.any(), new + drift, old)
