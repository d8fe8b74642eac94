"""Networks in stages: a row of blocks, each followed by an exit that answers; a client may have the first few only.

A module declares `stages`, the names of its tensors by stage; in training it answers [B, D, ...], one answer an exit.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedloom.core.goal import Loss
from fedloom.errors import BadModel
from fedloom.layout import Layout


class Summed(NamedTuple):
    """The sum of all exits' losses, which rules without an objective of their own train."""

    loss: Loss

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One loss per example [B]."""
        return losses_of(self.loss, outputs, targets).sum(1)


def losses_of(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each example at each exit [B, D]."""
    exits = outputs.shape[1]
    losses: Tensor = loss(outputs.flatten(0, 1), targets.repeat_interleave(exits, 0))
    found: Tensor = losses.unflatten(0, (-1, exits))
    return found


def stages_of(module: nn.Module) -> tuple[tuple[str, ...], ...]:
    """The stages that a network declares; empty if it declares none."""
    return tuple(tuple(names) for names in getattr(module, "stages", ()))


def depth_of(share: Tensor, stages: int) -> Tensor:
    """The number of stages that clients with these shares have [C], at least one."""
    return torch.ceil(share.double() * stages - 1e-6).long().clamp(1, stages)


@lru_cache(maxsize=8)
def stage_of_each(stages: tuple[tuple[str, ...], ...], layout: Layout, device: torch.device) -> Tensor:
    """The stage of each number [P], from 1; every tensor must be in exactly one."""
    found, named = [], [name for names in stages for name in names]
    for name, size in zip(layout.names, layout.sizes):
        if named.count(name) != 1:
            raise BadModel(f"tensor '{name}' is in {named.count(name)} of the network's stages; expected exactly one.")
        stage = next(number for number, names in enumerate(stages, 1) if name in names)
        found.append(torch.full((size,), stage))
    return torch.cat(found).to(device)
