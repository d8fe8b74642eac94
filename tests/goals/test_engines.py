"""Every goal under the methods of the five systems and their baselines: engines agree."""

from __future__ import annotations

import pytest
import torch
from goal_worlds import CASES, METHODS, goal_world
from torch import Tensor

from fedloom.chance import uniform
from fedloom.engine.cuda.graphs import Graphs
from fedloom.evaluate.score import evaluate
from fedloom.method import Method
from worlds import METHODS as ALL, assert_close, everything, play, states_of


def method_of(name: str) -> Method:
    """The method on the tiny fleet."""
    return dict(ALL)[name]()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("case", CASES)
def test_loop_equals_local(case: str, name: str) -> None:
    here, method = goal_world(case), method_of(name)
    loop, local = here.loop(method), here.local(method)
    slow, fast = play(here, method, loop), play(here, method, local)
    assert_close(everything(fast), everything(slow), 1e-5)
    ids = local.clients.states.known().tolist()
    assert_close(states_of(local, ids, here.model), states_of(loop, ids, here.model), 5e-5)


@pytest.mark.parametrize("case", CASES)
def test_chunks_equal_the_whole(case: str) -> None:
    here, method = goal_world(case), method_of("fedavg")
    assert_close(
        everything(play(here, method, here.local(method, 1))), everything(play(here, method, here.local(method))), 1e-5
    )


def flashed(x: Tensor, y: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs times a number of each example's own; tokens stay as they are."""
    factor = (0.5 + uniform(keys)).view(-1, *(1,) * (x.dim() - 1)).to(torch.float32)
    return (x * factor if x.is_floating_point() else x), y


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fjord", "fedspu"])
@pytest.mark.parametrize("case", CASES)
def test_steps_in_static_buffers_equal_the_loop(case: str, name: str) -> None:
    """As they are captured on a GPU, here uncaptured, with examples that a transform changes."""
    here, method = goal_world(case, transform=flashed), method_of(name)
    slow = play(here, method, here.loop(method))
    local = here.local(method, graphs=Graphs(capture=False))
    assert local.plan.captured
    fast = play(here, method, local)
    assert_close(everything(fast), everything(slow), 1e-5)
    if here.data.x.is_floating_point():
        plain = goal_world(case)
        assert not torch.equal(play(plain, method, plain.local(method)).model, fast.model)


@pytest.mark.parametrize("case", CASES)
def test_clients_learn(case: str) -> None:
    here, method = goal_world(case), method_of("fedavg")
    run = play(here, method, here.local(method), rounds=20)
    before, after = (float(evaluate(here.setting, model, here.data, 100).loss) for model in (here.model, run.model))
    assert after < before
