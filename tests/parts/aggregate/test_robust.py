"""Medians, trimmed means and Krum under masks equal plain loops."""

from __future__ import annotations

import math
from statistics import median
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from fedloom.chance import Chance
from fedloom.core.part import Aggregate
from fedloom.core.types import Reply
from fedloom.errors import BadExperiment
from fedloom.parts.aggregate import ranked_mean
from fedloom.parts.aggregate.coverage_mean import CoverageMean
from fedloom.parts.aggregate.krum import Krum, distances
from fedloom.parts.aggregate.ranked_mean import Median, TrimmedMean
from worlds import reply_rows, world

SETTING = world("mlp").setting
PARTS: list[Aggregate] = [Median(), TrimmedMean(0.3), TrimmedMean(0), Krum(0.2), Krum(0.3, keep=1), Krum(0.0, 3, 0.5)]


def case(clients: int, numbers: int, seed: int, masked: bool, losing: bool) -> tuple[Tensor, Reply]:
    """A model and replies, as the server reads them."""
    chance, rows, places = Chance(seed, 1), torch.arange(clients)[:, None], torch.arange(numbers)
    model = chance.uniform("model", places)
    params = chance.normal("params", rows, places).float()
    mask = chance.uniform("mask", rows, places) < 0.5 if masked else None
    arrived = chance.uniform("arrived", rows[:, 0]) < 0.8 if losing else torch.ones(clients, dtype=torch.bool)
    sent = arrived[:, None].expand_as(params) if mask is None else mask & arrived[:, None]
    params = torch.where(sent, params, model)
    report = {"examples": rows[:, 0] * 3 + 1, "loss": torch.zeros(clients)}
    return model, Reply(rows[:, 0] * 2, params, mask if mask is None else sent, {}, report, arrived)


def senders(reply: Reply, place: int) -> list[float]:
    """The values sent of one number."""
    return [
        float(reply.params[row, place])
        for row in range(len(reply.ids))
        if reply.arrived[row] and (reply.mask is None or reply.mask[row, place])
    ]


def naive_krum(part: Krum, model: Tensor, reply: Reply) -> list[float]:
    """Scores pair by pair, then the plain mean of those kept."""
    here = [row for row in range(len(reply.ids)) if reply.arrived[row]]
    sent = {r: {p for p in range(len(model)) if reply.mask is None or reply.mask[r, p]} for r in here}
    false = math.ceil(part.attackers * len(here) - 1e-9)
    scores = {}
    for a in here:
        far = []
        for b in here:
            both = sent[a] & sent[b]
            if a != b and len(both) >= max(1, part.overlap * min(len(sent[a]), len(sent[b]))):
                far.append(sum(float(reply.params[a, p] - reply.params[b, p]) ** 2 for p in both) / len(both))
        nearest = sorted(far)[: max(1, len(here) - false - 2)]
        scores[a] = sum(nearest) / len(nearest) if nearest else math.inf
    if all(score == math.inf for score in scores.values()):
        kept = here
    else:
        best = sorted(here, key=lambda r: (scores[r], int(reply.ids[r])))
        kept = [r for r in best[: len(here) - false if part.keep is None else part.keep] if scores[r] < math.inf]
    new = []
    for p in range(len(model)):
        values = [float(reply.params[r, p]) for r in kept if p in sent[r]]
        new.append(sum(values) / len(values) if values else float(model[p]))
    return new


def naive(part: Any, model: Tensor, reply: Reply) -> list[float]:
    """Number by number."""
    if isinstance(part, Krum):
        return naive_krum(part, model, reply)
    new = []
    for place in range(len(model)):
        values = sorted(senders(reply, place))
        if not values:
            new.append(float(model[place]))
        elif isinstance(part, Median):
            new.append(median(values))
        else:
            ends = math.floor(part.cut * len(values) + 1e-9)
            values = values[ends : len(values) - ends]
            new.append(sum(values) / len(values))
    return new


def call(part: Aggregate, model: Tensor, reply: Reply) -> Tensor:
    """The new model."""
    return part({}, SETTING, model, reply)[0]


@pytest.mark.parametrize("part", PARTS, ids=str)
@given(st.integers(1, 9), st.integers(1, 12), st.integers(0, 10**6), st.booleans(), st.booleans())
def test_as_by_hand(part: Aggregate, clients: int, numbers: int, seed: int, masked: bool, losing: bool) -> None:
    model, reply = case(clients, numbers, seed, masked, losing)
    torch.testing.assert_close(call(part, model, reply), torch.tensor(naive(part, model, reply)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("part", PARTS, ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_order_of_clients_is_irrelevant(part: Aggregate, masked: bool) -> None:
    model, reply = case(9, 40, 3, masked, True)
    mixed = call(part, model, reply_rows(reply, torch.tensor([4, 8, 0, 2, 7, 1, 3, 6, 5])))
    torch.testing.assert_close(mixed, call(part, model, reply), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
def test_nothing_cut_is_the_mean_of_equal_weights(masked: bool) -> None:
    model, reply = case(9, 40, 5, masked, True)
    expected = call(CoverageMean("uniform"), model, reply)
    torch.testing.assert_close(call(TrimmedMean(0), model, reply), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(call(Krum(0.0, overlap=0), model, reply), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_what_nobody_sent_stays_to_the_bit(part: Aggregate) -> None:
    model, reply = case(6, 10, 7, True, False)
    assert reply.mask is not None
    reply.mask[:, 4], reply.params[:, 4] = False, model[4]
    assert call(part, model, reply)[4] == model[4]
    nobody = reply._replace(arrived=torch.zeros_like(reply.arrived), mask=torch.zeros_like(reply.mask))
    nobody = nobody._replace(params=model.expand_as(reply.params))
    assert torch.equal(call(part, model, nobody), model)
    assert torch.equal(call(part, model, nobody._replace(mask=None)), model)


@pytest.mark.parametrize("part", [*PARTS[:2], *PARTS[3:5]], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_one_far_off_client_moves_nothing_far(part: Aggregate, masked: bool) -> None:
    model, reply = case(8, 30, 11, masked, False)
    reply = reply._replace(mask=None) if not masked else reply
    sent = torch.ones(30, dtype=torch.bool) if reply.mask is None else reply.mask.sum(0) >= 4
    params = reply.params.clone()
    params[2] = 1e30 if reply.mask is None else torch.where(reply.mask[2], 1e30, model)
    assert call(part, model, reply._replace(params=params))[sent].abs().max() < 4


@pytest.mark.parametrize("part", [Median(), TrimmedMean(0.25)], ids=str)
def test_blocks_equal_the_whole(part: Aggregate, monkeypatch: pytest.MonkeyPatch) -> None:
    model, reply = case(5, 33, 2, True, True)
    whole = call(part, model, reply)
    monkeypatch.setattr(ranked_mean, "BLOCK", 20)
    assert torch.equal(call(part, model, reply), whole)


def test_distances_are_infinite_where_nothing_is_shared() -> None:
    mask = torch.tensor([[True, True, False, False], [False, True, True, True], [False, False, False, True]])
    values = torch.tensor([[1.0, 2.0, 0.0, 0.0], [0.0, 5.0, 1.0, 1.0], [0.0, 0.0, 0.0, 3.0]])
    reply = Reply(torch.arange(3), values, mask, {}, {}, torch.ones(3, dtype=torch.bool))
    assert distances(values, reply).tolist() == [
        [math.inf, 9.0, math.inf],
        [9.0, math.inf, 4.0],
        [math.inf, 4.0, math.inf],
    ]
    assert distances(values, reply, 0.6)[0, 1] == math.inf  # one of two numbers is less than 0.6
    assert distances(values, reply, 0.6)[1, 2] == 4.0


def test_those_who_cannot_be_compared() -> None:
    mask = torch.eye(3, dtype=torch.bool)
    reply = Reply(torch.arange(3), torch.full((3, 3), 2.0).where(mask, torch.zeros(())), mask, {}, {}, mask.any(1))
    assert call(Krum(0.3), torch.zeros(3), reply).tolist() == [2.0, 2.0, 2.0]  # nobody is left out


@pytest.mark.parametrize(
    "make",
    [
        lambda: TrimmedMean(0.5),
        lambda: TrimmedMean(-0.1),
        lambda: Krum(0.5),
        lambda: Krum(0.2, 0),
        lambda: Krum(overlap=2),
    ],
)
def test_impossible_settings_are_refused(make: Any) -> None:
    with pytest.raises(BadExperiment):
        make()
