"""Steps in buffers that stand still, as they are captured on a GPU, give the same numbers as steps taken one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedloom.chance import Chance
from fedloom.core.optimiser import Adam, Sgd
from fedloom.engine.cuda.graphs import Graphs
from fedloom.method import Method
from fedloom.parts.select.bernoulli import Bernoulli
from pieces import NETWORKS
from worlds import METHODS, assert_close, every_method, everything, play, played, world


@every_method
def test_buffered_steps_equal_plain_steps(method: Method) -> None:
    here = world("normed")  # whose clients take unequally many steps
    found = play(here, method, here.local(method, graphs=Graphs(capture=False)), rounds=3)
    assert_close(everything(found), everything(played("normed", method, 3)), 1e-5)


@pytest.mark.parametrize("network", [name for name in NETWORKS if name != "normed"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fjord"])
def test_buffered_steps_of_other_networks(name: str, network: str) -> None:
    here, method = world(network), dict(METHODS)[name]()
    found = play(here, method, here.local(method, graphs=Graphs(capture=False)), rounds=2)
    assert_close(everything(found), everything(play(here, method, here.local(method), rounds=2)), 1e-5)


OPTIMISERS = {
    "momentum": Sgd(rate=0.05, momentum=0.9),
    "kept momentum": Sgd(rate=0.05, momentum=0.9, fresh=False),
    "weight decay": Sgd(rate=0.05, weight_decay=0.1, decay=0.5),
    "clip": Sgd(rate=0.05, clip=0.1),
    "adam": Adam(rate=0.01, fresh=False),
}


@pytest.mark.parametrize("optimiser", OPTIMISERS.values(), ids=list(OPTIMISERS))
@pytest.mark.parametrize("name", ["fedavg", "scattered", "fedprox"])
def test_buffered_steps_with_other_optimisers(name: str, optimiser: Sgd | Adam) -> None:
    here, method = world("normed"), replace(dict(METHODS)[name](), optimiser=optimiser)
    found = play(here, method, here.local(method, graphs=Graphs(capture=False)), rounds=3)
    assert_close(everything(found), everything(play(here, method, here.local(method), rounds=3)), 1e-5)


def test_smaller_cohorts_are_played_in_larger_buffers() -> None:
    here, method = world("mlp"), Method(select=Bernoulli(0.7))
    graphs = Graphs(capture=False)
    cohorts = {len(method.select({}, here.setting, Chance(0, number))[0].ids) for number in range(1, 9)}
    found = play(here, method, here.local(method, graphs=graphs), rounds=8)
    assert len(graphs._buffers) < len(cohorts)  # or this shows nothing
    assert torch.equal(found.replies[-1].ids, play(here, method, here.local(method), rounds=8).replies[-1].ids)
    assert_close(everything(found), everything(play(here, method, here.local(method), rounds=8)), 1e-5)
