"""Rounding: by how much, to which side, and what becomes of it in the next round."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from codec.parcels import bools, frame, numbers, seeds
from fedloom.chance import Chance
from fedloom.codec import Codec
from fedloom.errors import BadExperiment

LOSSY = [*(Codec(values=values) for values in ("float16", "bfloat16", "int8")), Codec(values="int8", scale="tensor")]
every_lossy = pytest.mark.parametrize("codec", LOSSY, ids=lambda codec: codec.kind)
LAYOUT = frame().layout


def keys(count: int, round: int = 1) -> torch.Tensor:
    return Chance(7, round).key("codec", torch.arange(count))


@pytest.mark.parametrize("scale", ["block", "tensor"])
def test_int8_is_unbiased(scale):
    draws = 4000
    values = torch.randn(LAYOUT.total, generator=torch.Generator().manual_seed(1))
    received = Codec(values="int8", scale=scale).roundtrip(values.expand(draws, -1), keys(draws), layout=LAYOUT)
    step = values.abs().max() / 127  # of the widest scale; one draw is off by half of it or less on average
    off = (received.double().mean(0) - values.double()).abs()
    assert off.max() < 5 * 0.5 * step / draws**0.5
    assert (received[0] - values).abs().max() > 0.9 * step  # it does round to the farther side, too


def test_int8_keeps_zeros_and_the_largest():
    values = torch.tensor([[0.0, -0.0, 127.0, -127.0, 3.0, 1e-30]])
    received = Codec(values="int8").roundtrip(values.expand(50, -1), keys(50))
    assert torch.equal(received[:, :5], values[:, :5].expand(50, -1))
    assert (received[:, 5] == 0).all()


@given(st.sampled_from(LOSSY), seeds, st.integers(1, 6), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
@settings(max_examples=60)
def test_a_client_is_rounded_alike_alone_and_in_a_cohort(codec, seed, clients, share):
    values, mask = numbers(seed, clients, LAYOUT.total), bools(seed, share, clients, LAYOUT.total)
    together = codec.roundtrip(values, keys(clients), mask, LAYOUT)
    for i in range(clients):
        alone = codec.roundtrip(values[i : i + 1], keys(clients)[i : i + 1], mask[i : i + 1], LAYOUT)
        assert torch.equal(alone[0], together[i])


@every_lossy
def test_what_is_not_sent_is_not_read(codec):
    values, mask = numbers(2, 3, LAYOUT.total), bools(3, 0.5, 3, LAYOUT.total)
    poisoned = torch.where(mask, values, torch.nan)
    received = codec.roundtrip(poisoned, keys(3), mask, LAYOUT)
    assert torch.equal(received[mask], codec.roundtrip(values, keys(3), mask, LAYOUT)[mask])
    assert received[~mask].isnan().all()


@every_lossy
def test_what_is_not_finite_stays_so(codec):
    for bad in (torch.nan, torch.inf, -torch.inf):
        values = numbers(2, 1, LAYOUT.total)
        values[0, 17] = bad
        assert not codec.roundtrip(values, keys(1), layout=LAYOUT)[0, 17].isfinite()


def test_beyond_its_range_float16_is_infinite():
    assert Codec(values="float16").roundtrip(torch.tensor([[65504.0, 7e4]])).tolist() == [[65504.0, torch.inf]]


def test_double_precision_is_rounded_as_single():
    values = numbers(4, 2, LAYOUT.total)
    for codec in (Codec(), *LOSSY):
        wide = codec.roundtrip(values.double(), keys(2), layout=LAYOUT)
        assert wide.dtype == torch.float64
        assert torch.equal(wide.float(), codec.roundtrip(values, keys(2), layout=LAYOUT))


@every_lossy
def test_feedback_adds_up(codec):
    codec = codec.model_copy(update={"feedback": True})
    rounds, residual = 30, torch.zeros(2, LAYOUT.total)
    given = received = torch.zeros(2, LAYOUT.total, dtype=torch.float64)
    for number in range(rounds):
        mask = bools(number, 0.7, 2, LAYOUT.total)
        values = torch.randn(2, LAYOUT.total, generator=torch.Generator().manual_seed(number))
        poisoned = torch.where(mask, values, torch.nan)
        wanted, arrived, residual = codec.correct(poisoned, residual, keys(2, number), mask, LAYOUT)
        again = codec.roundtrip(wanted, keys(2, number), mask, LAYOUT)
        assert torch.equal(again[mask], arrived[mask])
        given = given + torch.where(mask, values, 0)
        received = received + torch.where(mask, arrived, 0)
    assert torch.allclose(received + residual, given, atol=1e-5)
    assert residual.abs().max() > 0


@every_lossy
def test_with_feedback_rounding_does_not_pile_up(codec):
    values = torch.full((1, LAYOUT.total), 1.0 / 3)
    values[0, 0] = 40.0  # so that int8 has wide steps
    many = 200

    def total(codec: Codec) -> torch.Tensor:
        residual, sum_ = torch.zeros_like(values), torch.zeros_like(values).double()
        for number in range(many):
            _, received, residual = codec.correct(values, residual, keys(1, number), layout=LAYOUT)
            sum_ += received
        return (sum_ - many * values.double()).abs().mean()

    assert total(codec.model_copy(update={"feedback": True})) < total(codec) / 3


def test_without_feedback_nothing_is_corrected():
    values, residual = numbers(1, 2, 9), numbers(2, 2, 9)
    same, _, kept = Codec(values="int8").correct(values, residual, keys(2))
    assert same is values
    assert kept is residual


def test_float32_loses_nothing():
    values = numbers(3, 2, 50)
    codec = Codec()
    assert torch.equal(codec.roundtrip(values).view(torch.int32), values.view(torch.int32))
    assert codec.correct(values, torch.zeros_like(values))[2].abs().max() == 0
    assert codec.bound(values.abs()).max() == 0


def test_what_rounding_needs_is_asked_for():
    with pytest.raises(BadExperiment, match="key"):
        Codec(values="int8").roundtrip(torch.zeros(1, 3))
    with pytest.raises(BadExperiment, match="layout"):
        Codec(values="int8", scale="tensor").roundtrip(torch.zeros(1, 3), keys(1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
@every_lossy
def test_accelerators_round_alike(codec):
    values, mask = numbers(1, 5, LAYOUT.total), bools(2, 0.5, 5, LAYOUT.total)
    there = codec.roundtrip(values.cuda(), keys(5).cuda(), mask.cuda(), LAYOUT)
    assert torch.equal(there.cpu(), codec.roundtrip(values, keys(5), mask, LAYOUT))
