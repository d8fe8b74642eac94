"""Losses have the rates they are said to have, and depend on nothing but seed, round and client."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from fedloom.chance import Chance
from fedloom.errors import BadExperiment
from fedloom.world.channel import Bernoulli, Bursty, Channel, Pieces
from world.made import made
from worlds import world

MANY = torch.arange(20_000)
CHANNELS = [
    Bernoulli(0.3, 0.1),
    Bernoulli(None, None),
    Bernoulli(0.5, 0.3, 0.2, 9),
    Bursty(),
    Bursty(0.3, 0.9, 0.1, 0.8),
    Bursty(down=False),
]


@pytest.mark.parametrize("channel", CHANNELS, ids=repr)
def test_a_clients_fate_depends_on_nobody_else(channel: Channel):
    devices = made(50, reliability=0.7)
    some = torch.tensor([3, 17, 40])
    for number in (1, 2, 30):
        whole, part = (channel(ids, devices, Chance(5, number)) for ids in (torch.arange(50), some))
        assert torch.equal(whole.down[some], part.down)
        assert torch.equal(whole.up[some], part.up)


def test_bernoulli_rates():
    found = Bernoulli(up=0.3, down=0.1)(MANY, None, Chance(2, 7))
    assert 1 - float(found.up.double().mean()) == pytest.approx(0.3, abs=0.013)  # four standard deviations
    assert 1 - float(found.down.double().mean()) == pytest.approx(0.1, abs=0.0085)
    both = (~found.up & ~found.down).double().mean()
    assert float(both) == pytest.approx(0.03, abs=0.005), "each by itself"
    assert all(side.all() for side in Bernoulli()(MANY, None, Chance(0, 1)))
    assert not any(side.any() for side in Bernoulli(1, 1)(MANY, None, Chance(0, 1)))


def test_rounds_are_independent():
    first, second = (Bernoulli(0.5)(MANY, None, Chance(2, number)).up.double() for number in (1, 2))
    assert float((first * second).mean()) == pytest.approx(0.25, abs=0.0125)


def test_losses_by_reliability():
    devices = made(len(MANY), reliability=[0.6, 1.0] * (len(MANY) // 2))
    found = Bernoulli(None, 0.0)(MANY, devices, Chance(1, 1))
    assert found.down.all()
    assert found.up[1::2].all()
    assert float(found.up[::2].double().mean()) == pytest.approx(0.6, abs=0.02)
    with pytest.raises(BadExperiment, match="reliability needs a fleet with devices"):
        Bernoulli(None)(MANY, None, Chance(1, 1))


def test_a_swing_goes_around_the_mean_and_every_client_has_its_own_time():
    channel, ids = Bernoulli(up=0.4, swing=0.3, period=20), torch.arange(500)
    lost = torch.stack([channel.lost("up", ids, None, Chance(6, number)) for number in range(1, 41)])
    assert torch.allclose(lost[:20], lost[20:]), "it repeats"
    assert torch.allclose(lost[:20].mean(0), torch.tensor(0.4, dtype=torch.float64))
    assert lost.min() == pytest.approx(0.1, abs=1e-3)
    assert lost.max() == pytest.approx(0.7, abs=1e-3)
    assert lost.mean(1).sub(0.4).abs().max() < 0.06, "not all at once"
    assert torch.equal(lost[7], channel.lost("up", ids, None, Chance(6, 8))), "whatever round was asked for before"
    assert not channel.lost("down", ids, None, Chance(6, 8)).any(), "a perfect link stays so"


def test_messages_are_lost_as_often_as_the_swing_says():
    channel, chance = Bernoulli(up=0.5, swing=0.5, period=10), Chance(2, 3)
    lost, found = channel.lost("up", MANY, None, chance), channel(MANY, None, chance).up
    for low in (0.0, 0.3, 0.6, 0.9):
        here = (lost >= low) & (lost < low + 0.1)
        assert 1 - float(found[here].double().mean()) == pytest.approx(low + 0.05, abs=0.06)
    devices = made(len(MANY), reliability=[0.9, 1.0] * (len(MANY) // 2))
    swung = Bernoulli(None, swing=0.3, period=10).lost("up", MANY, devices, chance)
    assert not swung[1::2].any()
    assert swung[::2].max() == pytest.approx(0.2, abs=1e-4), "as far as 0 allows"
    assert swung.min() >= 0


# ---- bursts


def states(channel: Bursty, ids: Tensor, rounds: int, seed: int = 0) -> Tensor:
    """Whose link is bad, round by round [rounds, C]."""
    return torch.stack([channel.is_bad(ids, Chance(seed, number)) for number in range(1, rounds + 1)])


@settings(max_examples=15)
@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 99))
def test_looking_back_is_the_same_as_stepping_forward(enter, leave, seed):
    if enter + leave == 0:
        return
    channel, ids = Bursty(enter, leave), torch.arange(6)
    found = states(channel, ids, 45, seed)
    bad = found[0]
    for number in range(2, 46):
        draw = Chance(seed, 0).uniform("link", ids, number)
        bad = torch.where(bad, draw < 1 - leave, draw < enter)
        assert torch.equal(found[number - 1], bad)


@pytest.mark.parametrize(("enter", "leave"), [(0.05, 0.2), (0.4, 0.9), (0.02, 0.02)])
def test_bursts_have_their_rate_and_length(enter, leave):
    found = states(Bursty(enter, leave), torch.arange(4000), 60)
    stationary = enter / (enter + leave)
    assert found[0].double().mean().item() == pytest.approx(stationary, abs=0.035), "from the first round on"
    assert found.double().mean().item() == pytest.approx(stationary, abs=0.02)
    left = (found[:-1] & ~found[1:]).sum() / found[:-1].sum()
    entered = (~found[:-1] & found[1:]).sum() / (~found[:-1]).sum()
    assert float(left) == pytest.approx(leave, rel=0.07)  # a burst ends so often: its length is 1 / leave
    assert float(entered) == pytest.approx(enter, rel=0.07)


def test_messages_are_lost_by_the_links_state():
    channel, chance = Bursty(0.2, 0.3, good=0.05, bad=0.7), Chance(3, 9)
    bad, found = channel.is_bad(MANY, chance), channel(MANY, None, chance)
    for side in found:
        assert 1 - float(side[bad].double().mean()) == pytest.approx(0.7, abs=0.025)
        assert 1 - float(side[~bad].double().mean()) == pytest.approx(0.05, abs=0.01)
    assert Bursty(0.2, 0.3, down=False)(MANY, None, chance).down.all()


# ---- pieces


@pytest.mark.parametrize("by", ["slices", "neurons"])
@pytest.mark.parametrize("network", ["mlp", "cnn", "normed", "text"])
def test_every_number_travels_in_one_piece(by, network):
    setting = world(network).setting
    piece = Pieces(3, 0.5, by).piece_of(setting)
    assert piece.shape == (setting.layout.total,)
    assert piece.unique().tolist() == [0, 1, 2]


def test_slices_are_equal_and_neurons_are_whole():
    setting = world("mlp").setting
    assert Pieces(4, 0.5).piece_of(setting).bincount().tolist() == [81, 81, 81, 80]
    piece = Pieces(2, 0.5, "neurons").piece_of(setting)
    rows = setting.layout.split(piece)
    assert rows["1.weight"].tolist() == [[0] * 36] * 4 + [[1] * 36] * 4
    assert rows["1.bias"].tolist() == [0] * 4 + [1] * 4
    assert rows["3.weight"].tolist() == [[0] * 8] * 2 + [[1] * 8]


def test_pieces_are_lost_by_themselves():
    found = Pieces(3, 0.2).survive(MANY, Chance(4, 2))
    assert found.shape == (len(MANY), 3)
    assert 1 - float(found.double().mean()) == pytest.approx(0.2, abs=0.007)
    assert float((~found).all(1).double().mean()) == pytest.approx(0.008, abs=0.003)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Bernoulli(1.5),
        lambda: Bernoulli(0, -0.1),
        lambda: Bernoulli(0.5, swing=1.1),
        lambda: Bernoulli(0.5, swing=0.1, period=0),
        lambda: Bursty(enter=2),
        lambda: Bursty(bad=float("nan")),
        lambda: Bursty(0, 0),
        lambda: Pieces(0),
        lambda: Pieces(2, 1.1),
        lambda: Pieces(2, 0.1, "rows"),
    ],
)
def test_impossible_channels_are_refused(make):
    with pytest.raises(BadExperiment):
        make()
