"""The training of one client in plain PyTorch, for tests that write a paper's algorithm in loops."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.work import Work
from fedloom.layout import flatten, load
from worlds import SEED, World

Correction = Callable[[Tensor], Tensor]  # of the weights [P] as they stand, to what is added to their gradient [P]


def train_one(
    here: World,
    work: Work,
    client: int,
    number: int,
    first: Tensor,
    rate: float,
    momentum: float = 0.0,
    correction: Correction | None = None,
    moves: Tensor | None = None,
) -> tuple[Tensor, float, int]:
    """The weights [P] after one client's round, its mean loss, and its steps; numbers outside `moves` stay."""
    layout = here.setting.layout
    net = load(deepcopy(here.setting.module), layout, first).train()
    parameters = dict(net.named_parameters())
    velocity = {name: torch.zeros_like(p) for name, p in parameters.items()}
    one, size = torch.tensor([client]), here.shards.sizes[client]
    batches = work.plan(one, here.shards.rows(one, size), [size], Chance(SEED, number))
    losses = []
    for examples, real in zip(batches.examples[0], batches.real[0]):
        net.zero_grad()
        loss = F.cross_entropy(net(here.data.x[examples[real]]), here.data.y[examples[real]])
        loss.backward()
        losses.append(float(loss.detach()))
        added = None if correction is None else layout.split(correction(flatten(net, layout)))
        with torch.no_grad():
            for name, p in parameters.items():
                gradient = p.grad if added is None else p.grad + added[name]
                velocity[name] = momentum * velocity[name] + gradient
                p -= rate * velocity[name]
        if moves is not None:
            net = load(net, layout, torch.where(moves, flatten(net, layout), first)).train()
            parameters = dict(net.named_parameters())
    return flatten(net, layout), sum(losses) / len(losses), len(losses)


def loss_on(here: World, weights: Tensor, examples: Tensor) -> float:
    """The mean loss of a model [P] on some examples, in evaluation mode."""
    net = load(deepcopy(here.setting.module), here.setting.layout, weights).eval()
    with torch.no_grad():
        return float(F.cross_entropy(net(here.data.x[examples]), here.data.y[examples]))
