"""Attackers: who they are, what they send, and which aggregates bear them."""

from __future__ import annotations

from statistics import mean
from typing import Any

import pytest
import torch

from fedloom import Experiment, run
from fedloom.chance import Chance
from fedloom.core.types import column
from fedloom.errors import BadExperiment
from fedloom.methods.fedavg import fedavg
from fedloom.methods.fjord import fjord
from fedloom.runs.inputs import inputs_of
from fedloom.world.attack import Attack, Attacked, LabelFlip, Noise, Scaling, SignFlip
from worlds import play, small, world

ATTACKS = {"sign-flip": SignFlip, "scaling": Scaling, "noise": Noise, "label-flip": LabelFlip}


@pytest.mark.parametrize(("share", "count"), [(0, 0), (0.2, 20), (0.125, 12), (1, 100)])
def test_a_share_of_the_fleet_by_the_seed_alone(share: float, count: int) -> None:
    who = [SignFlip(share).who(100, Chance(4, number)) for number in (0, 1, 9)]
    assert int(who[0].sum()) == count
    assert torch.equal(who[0], who[1])
    assert torch.equal(who[0], who[2])
    if 0 < share < 1:
        assert not torch.equal(who[0], SignFlip(share).who(100, Chance(5, 0)))


@pytest.mark.parametrize("attack", [SignFlip(), Scaling(), Noise(), LabelFlip(scale=3.0)], ids=str)
def test_attackers_alone_send_something_else(attack: Attack) -> None:
    here, method = world("mlp"), small(fedavg())
    who = attack.who(here.setting.fleet.size, Chance(7, 0))
    honest = play(here, method, here.local(method), rounds=1).replies[0]
    found = play(here, method, Attacked(here.local(method), attack, who), rounds=1).replies[0]
    assert who[found.ids].any()
    for row, client in enumerate(found.ids.tolist()):
        was, sent = honest.params[row] - here.model, found.params[row] - here.model
        if not who[client]:
            assert torch.equal(found.params[row], honest.params[row])
        else:
            factor = -attack.scale if isinstance(attack, SignFlip) else attack.scale
            assert float(sent.norm()) == pytest.approx(attack.scale * float(was.norm()), rel=1e-4)
            if not isinstance(attack, Noise):
                torch.testing.assert_close(sent, factor * was, rtol=1e-3, atol=1e-5)


def test_attackers_are_measured_by_what_they_send() -> None:
    here, method = world("mlp"), small(fjord())
    who = torch.ones(here.setting.fleet.size, dtype=torch.bool)
    honest = play(here, method, here.local(method), rounds=1).replies[0]
    found = play(here, method, Attacked(here.local(method), SignFlip(), who), rounds=1).replies[0]
    assert found.mask is not None
    torch.testing.assert_close(found.params - here.model, -5 * (honest.params - here.model), rtol=1e-3, atol=1e-5)


def test_labels_of_attackers_alone_are_turned() -> None:
    clean, flipped = (
        inputs_of(Experiment(clients=10, partition="iid", attack=name)) for name in ("none", "label-flip")
    )
    who = LabelFlip().who(10, Chance(0, 0))
    assert int(who.sum()) == 2
    for client, own in enumerate(clean.shards.examples.split(clean.shards.sizes)):
        before, after = clean.train.y[own], flipped.train.y[own]
        assert torch.equal(after, 9 - before if who[client] else before)
    assert torch.equal(clean.test.y, flipped.test.y)
    assert torch.equal(clean.setting.fleet.labels, flipped.setting.fleet.labels)


def test_noise_is_drawn_anew_for_everyone() -> None:
    change, ids = torch.ones(3, 1000), torch.tensor([1, 4, 6])
    first, second = (Noise(scale=1.0).change(change, ids, Chance(0, number)) for number in (1, 2))
    assert not torch.equal(first, second)
    assert abs(float(torch.corrcoef(first)[0, 1])) < 0.1
    torch.testing.assert_close(first.norm(dim=1), change.norm(dim=1))
    some = Noise(scale=1.0).change(change[1:], ids[1:], Chance(0, 1))
    assert torch.equal(some, first[1:])
    assert column(ids, change).shape == (3, 1)


def accuracy(aggregate: Any, attack: str) -> float:
    """Of the last three of twelve rounds."""
    experiment = Experiment(
        aggregate=aggregate, attack=attack, partition="iid", clients=20, per_round=20, rounds=12, training={"epochs": 2}
    )
    return mean(row["accuracy"] for row in run(experiment).rounds[-3:])


def test_a_robust_aggregate_withstands_what_a_mean_does_not() -> None:
    clean = accuracy("mean", "none")
    assert clean > 0.8
    krum = {"name": "krum", "settings": {"attackers": 0.2}}
    for attack in ATTACKS:
        assert accuracy("mean", attack) < clean - 0.2, attack
        assert accuracy(krum, attack) > clean - 0.02, attack


def test_impossible_attacks_are_refused() -> None:
    with pytest.raises(BadExperiment, match=r"attackers .* is 1.5"):
        Experiment(attack={"name": "noise", "settings": {"attackers": 1.5}})
    with pytest.raises(BadExperiment, match="did you mean 'sign-flip'"):
        Experiment(attack="signflip")
    with pytest.raises(BadExperiment, match="takes no settings"):
        Experiment(attack={"name": "none", "settings": {"attackers": 0.5}})
