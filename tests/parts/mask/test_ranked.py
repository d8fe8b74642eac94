"""Ranked: positions equal sorted scores; OwnClasses and Tiers equal what they are made of."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedloom.chance import Chance
from fedloom.core.types import Examples
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.mask.own_classes import OwnClasses, own_rows
from fedloom.parts.mask.ranked import Ranked
from worlds import World, world, world_of

SHARES = torch.tensor([0.01, 0.2, 0.25, 1 / 3, 0.5, 0.6, 0.7, 0.99, 1.0, 0.4, 0.8, 0.1])


def grouped() -> World:
    """Channels in groups of four, so that multiples of four stay."""
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3), nn.GroupNorm(4, 12), nn.ReLU(), nn.Flatten(), nn.Linear(192, 7), nn.Tanh(), nn.Linear(7, 3)
    )
    y = torch.arange(24) % 3
    y[:12] %= 2  # the first half of the clients lack a class
    return world_of(net, Examples(torch.rand(24, 1, 6, 6), y), torch.arange(24).split(2))


@pytest.mark.parametrize("make", [lambda: world("mlp"), lambda: world("normed"), grouped])
@pytest.mark.parametrize("rounding", ["floor", "half-up", "ceil"])
@pytest.mark.parametrize("number", [1, 4, 100])
def test_by_position_is_by_falling_scores(make: Any, rounding: Any, number: int) -> None:
    setting, model = make().setting, make().model
    neurons, ids = setting.neurons, torch.arange(len(SHARES))
    spans = [span for _, span in neurons.spans(neurons.size)]
    for by, turn in (("ordered", 0), ("rolling", number - 1)):
        ranks = [(torch.arange(s.stop - s.start) - turn) % (s.stop - s.start) for s in spans]
        (mask, keep), _ = Ranked(by, rounding)({}, setting, model, ids, SHARES, Chance(1, number))
        wanted = neurons.cut(-torch.cat(ranks).expand(len(ids), -1), SHARES, rounding=rounding)
        assert torch.equal(keep, wanted)
        assert torch.equal(mask, neurons.expand(wanted))


@pytest.mark.parametrize("by", ["ordered", "rolling", "random", "l1"])
@pytest.mark.parametrize("share", [SHARES, torch.ones(len(SHARES))], ids=["some", "all"])
def test_own_classes_send_what_both_do(by: str, share: torch.Tensor) -> None:
    here, ids, chance = grouped(), torch.arange(len(SHARES)), Chance(1, 3)
    inner = Ranked(by)
    (mask, keep), _ = inner({}, here.setting, here.model, ids, share, chance)
    found, _ = OwnClasses(inner)({}, here.setting, here.model, ids, share, chance)
    rows = own_rows(here.setting, ids)
    assert not rows.all()
    assert torch.equal(found.mask, rows if mask is None else rows & mask)
    assert (found.keep is None) == (keep is None) == bool((share == 1).all())
    assert keep is None or torch.equal(found.keep, keep)


def test_tiers_keep_their_shares() -> None:
    here, tiers = world("mlp"), Tiers((0.25, 0.5, 1))
    for _ in range(2):
        share, _ = tiers({}, here.setting, torch.tensor([4, 2, 3]), Chance(1, 1))
        assert share.tolist() == [0.5, 1.0, 0.25]
        share.zero_()  # a copy of the caller's own
