"""Optimisers over a cohort's rows equal torch.optim on each client alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.optimiser import Adam, Optimiser, Sgd
from fedloom.core.rows import rows
from fedloom.errors import BadExperiment

CLIENTS, NUMBERS, STEPS = 3, 6, (5, 3, 1)  # clients take unequal numbers of steps, in falling order

Theirs = Callable[[list[Tensor]], torch.optim.Optimizer]
PAIRS: dict[str, tuple[Optimiser, Theirs]] = {
    "plain": (Sgd(rate=0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "weight decay": (Sgd(rate=0.1, weight_decay=0.3), lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.3)),
    "momentum": (
        Sgd(rate=0.1, momentum=0.9, weight_decay=0.3),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.3),
    ),
    "clip": (
        Sgd(rate=0.1, momentum=0.5, weight_decay=0.3, clip=0.4),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.5, weight_decay=0.3),
    ),
    "adam": (Adam(rate=0.01), lambda p: torch.optim.Adam(p, 0.01)),
    "adam with all": (
        Adam(rate=0.01, beta1=0.8, beta2=0.9, eps=1e-3, weight_decay=0.1, clip=0.4),
        lambda p: torch.optim.Adam(p, 0.01, (0.8, 0.9), 1e-3, weight_decay=0.1),
    ),
}


def draw(purpose: str, *shape: int) -> Tensor:
    """Numbers from -1 to 1 in double precision."""
    return Chance(2, 0).uniform(purpose, torch.arange(torch.Size(shape).numel())).double().view(shape) * 2 - 1


def gradient(params: Tensor, step: int) -> Tensor:
    """A gradient that depends on the weights, so that errors grow; some are clipped, some not."""
    return torch.sin(3 * params) * (0.1 + 0.3 * step)


@pytest.mark.parametrize("name", PAIRS)
def test_equals_torch(name: str) -> None:
    ours, theirs = PAIRS[name]
    params = draw("params", CLIENTS, NUMBERS)
    expected = [row.clone().requires_grad_() for row in params]
    moments = ours.begin(params)
    for step in range(max(STEPS)):
        now = slice(sum(step < own for own in STEPS))
        ours.step(rows(moments, now), params[now], gradient(params[now], step), ours.rate, None)
    for row, own in zip(expected, STEPS):
        optimiser = theirs([row])
        for step in range(own):
            row.grad = gradient(row.detach(), step)
            if ours.clip is not None:
                torch.nn.utils.clip_grad_norm_([row], ours.clip)
            optimiser.step()
    torch.testing.assert_close(params, torch.stack([row.detach() for row in expected]), rtol=0, atol=1e-6)


def test_clip_bounds_each_client_alone() -> None:
    grads = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    params = torch.zeros(3, 2)
    Sgd(rate=1.0, clip=1.0).step({}, params, grads, 1.0, None)
    torch.testing.assert_close(params, -torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))


@pytest.mark.parametrize(
    "optimiser", [Sgd(momentum=0.9, weight_decay=0.1, fresh=False), Adam(weight_decay=0.1, fresh=False)]
)
def test_numbers_that_may_not_move_stay_exactly(optimiser: Optimiser) -> None:
    params = draw("params", CLIENTS, NUMBERS)
    before, moments = params.clone(), optimiser.begin(params)
    some = draw("mask", CLIENTS, NUMBERS) > 0
    optimiser.step(moments, params, gradient(params, 1), 0.1, ~some)  # a round with another mask left its moments
    assert torch.equal(params[some], before[some])
    for name in moments.keys() - {"count"}:
        assert not moments[name][some].any()  # nor do they gather momentum
    between = params.clone()
    optimiser.step(moments, params, gradient(params, 1), 0.1, some)
    assert torch.equal(params[~some], between[~some])
    assert (params[some] != between[some]).all()


@pytest.mark.parametrize("optimiser", [Sgd(clip=0.5), Sgd(clip=0.5, momentum=0.9), Adam(clip=0.5, weight_decay=0.1)])
def test_gradients_of_what_is_not_held_do_not_count(optimiser: Optimiser) -> None:
    """A client with a part of the model takes the step that it would take if the rest did not exist."""
    start, may = draw("params", CLIENTS, NUMBERS), torch.arange(NUMBERS).expand(CLIENTS, -1) < 4
    ends = []
    for elsewhere in (0.0, 1e6, torch.nan):
        params = start.clone()
        grads = torch.where(may, gradient(start, 1), elsewhere)
        optimiser.step(optimiser.begin(params), params, grads, 0.1, may)
        ends.append(params)
    alone = start[:, :4].clone()
    optimiser.step(optimiser.begin(alone), alone, gradient(alone, 1), 0.1, None)
    for end in ends:
        torch.testing.assert_close(end[:, :4], alone, rtol=0, atol=1e-12)
        assert torch.equal(end[:, 4:], start[:, 4:])


def test_the_rate_falls_from_round_to_round() -> None:
    optimiser = Sgd(rate=0.5, decay=0.1)
    assert [optimiser.rate_at(number) for number in (1, 2, 3)] == pytest.approx([0.5, 0.05, 0.005])


def test_only_bare_descent_is_plain() -> None:
    assert Sgd().plain
    assert Sgd(weight_decay=0.1, decay=0.9).plain
    for other in (Sgd(momentum=0.1), Sgd(clip=1.0), Adam()):
        assert not other.plain


@pytest.mark.parametrize(
    ("kind", "arguments", "text"),
    [
        (Sgd, {"rate": 0.0}, "rate .*is 0.0"),
        (Sgd, {"rate": float("nan")}, "rate .*is nan"),
        (Sgd, {"decay": 1.5}, "decay .*is 1.5"),
        (Sgd, {"weight_decay": -1.0}, "weight_decay is -1.0"),
        (Sgd, {"clip": 0.0}, "clip .*is 0.0"),
        (Sgd, {"momentum": 1.0}, "momentum is 1.0"),
        (Adam, {"beta1": 1.0}, "beta1 is 1.0"),
        (Adam, {"beta2": -0.1}, "beta2 is -0.1"),
    ],
)
def test_impossible_optimisers_are_refused(kind: type[Optimiser], arguments: dict[str, float], text: str) -> None:
    with pytest.raises(BadExperiment, match=text):
        kind(**arguments)
