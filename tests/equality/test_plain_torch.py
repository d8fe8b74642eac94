"""FedAvg written out with modules, loss.backward and torch.optim gives what the parts give."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedloom.chance import Chance
from fedloom.core.optimiser import Adam, Optimiser, Sgd
from fedloom.core.work import Work
from fedloom.layout import flatten, load
from fedloom.methods.fedavg import fedavg
from worlds import SEED, World, assert_close, played, small, world

WORK = Work(epochs=2, batch=6)
OPTIMISERS = [
    Sgd(rate=0.1, weight_decay=0.01),
    Sgd(rate=0.05, momentum=0.9, weight_decay=0.01, decay=0.9),
    Adam(rate=0.01, eps=1e-3, weight_decay=0.01),
]


def by_hand(here: World, optimiser: Optimiser, rounds: list[list[int]]) -> torch.Tensor:
    """The selected clients' own modules, trained one by one, and the mean of their vectors."""
    module, layout = deepcopy(here.setting.module), here.setting.layout
    model = here.model
    for number, ids in enumerate(rounds, 1):
        ends = []
        for client in ids:
            net = load(deepcopy(module), layout, model)
            _train(net, here, optimiser, client, number)
            ends.append(flatten(net, layout) * here.shards.sizes[client])
        model = torch.stack(ends).sum(0) / sum(here.shards.sizes[client] for client in ids)
    return model


def _train(net: nn.Module, here: World, optimiser: Optimiser, client: int, number: int) -> None:
    rate = optimiser.rate * optimiser.decay ** (number - 1)
    if isinstance(optimiser, Sgd):
        step = torch.optim.SGD(net.parameters(), rate, optimiser.momentum, weight_decay=optimiser.weight_decay)
    else:
        step = torch.optim.Adam(net.parameters(), rate, eps=optimiser.eps, weight_decay=optimiser.weight_decay)
    one, size = torch.tensor([client]), here.shards.sizes[client]
    batches = WORK.plan(one, here.shards.rows(one, size), [size], Chance(SEED, number))
    net.train()
    for examples, real in zip(batches.examples[0], batches.real[0]):
        step.zero_grad()
        F.cross_entropy(net(here.data.x[examples[real]]), here.data.y[examples[real]]).backward()
        step.step()


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=["plain", "momentum", "adam"])
@pytest.mark.parametrize("network", ["cnn", "normed", "text"])
def test_fedavg_by_hand(network: str, optimiser: Optimiser) -> None:
    run = played(network, small(fedavg(), optimiser=optimiser, work=WORK))
    hand = by_hand(world(network), optimiser, [reply.ids.tolist() for reply in run.replies])
    assert_close({"model": run.model}, {"model": hand}, 1e-5)
