"""Chance is a function: the same key gives the same number, and no two purposes know of each other."""

from __future__ import annotations

from hashlib import blake2b
from itertools import combinations

import pytest
import torch
from hypothesis import given, strategies as st
from scipy.stats import chi2
from torch import Tensor

from fedloom.chance import Chance, absorb, uniform

WORD = (1 << 64) - 1
seeds = st.integers(0, 2**63 - 1)


def mix(value: int) -> int:
    """SplitMix64's finish, in Python's own whole numbers."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & WORD
    return value ^ (value >> 31)


def by_hand(seed: int, purpose: str, round: int, *parts: int) -> int:
    """The key, without a tensor; as an unsigned number."""
    word = int.from_bytes(blake2b(purpose.encode(), digest_size=8).digest(), "little")
    state = 0
    for part in (seed, word, round, *parts):
        state = mix((state * 0x9E3779B97F4A7C15 + part + 1) & WORD)
    return state


@given(
    seeds,
    st.sampled_from(["select", "batches", "mask"]),
    st.integers(0, 10**6),
    st.lists(st.integers(0, 2**40), max_size=3),
)
def test_integer_arithmetic_to_the_last_bit(seed: int, purpose: str, round: int, parts: list[int]) -> None:
    key = Chance(seed, round).key(purpose, *[torch.tensor(part) for part in parts])
    assert int(key) & WORD == by_hand(seed, purpose, round, *parts)
    assert float(uniform(key)) == (by_hand(seed, purpose, round, *parts) >> 40) / 2**24  # exact in float32


def test_golden_values() -> None:
    chance = Chance(seed=1, round=2)
    assert int(chance.key("select")) == 8589181363934889803
    assert (chance.uniform("select", torch.arange(4)) * 2**24).int().tolist() == [13697181, 16541226, 11093033, 5927089]
    assert chance.choose("select", 5, 100).tolist() == [19, 22, 42, 62, 90]


def test_numbers_and_tensors_are_the_same_part() -> None:
    chance = Chance(3, 4)
    table = chance.key("x", torch.arange(5)[:, None], torch.arange(7))
    assert table.shape == (5, 7)
    for row in range(5):
        assert torch.equal(chance.key("x", row, torch.arange(7)), table[row])
        for column in range(7):
            assert int(chance.key("x", row, column)) == int(table[row, column])
    assert torch.equal(absorb(chance.key("x", torch.arange(5)), 3), table[:, 3])


@given(st.integers(1, 50), st.integers(1, 50))
def test_any_chunking_gives_the_same(total: int, chunk: int) -> None:
    chance, ids = Chance(9, 1), torch.arange(total) * 37
    parts = [chance.uniform("mask", part[:, None], torch.arange(3)) for part in ids.split(chunk)]
    assert torch.equal(torch.cat(parts), chance.uniform("mask", ids[:, None], torch.arange(3)))


def test_narrow_integers_are_the_same_part() -> None:
    ids = torch.arange(20)
    assert torch.equal(Chance(1, 1).key("x", ids.to(torch.int32)), Chance(1, 1).key("x", ids))


@pytest.mark.parametrize("bins", [16, 1000])
def test_uniform(bins: int) -> None:
    drawn = Chance(5, 1).uniform("flat", torch.arange(200_000))
    assert drawn.dtype == torch.float32
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts = torch.bincount((drawn * bins).long(), minlength=bins).double()
    expected = len(drawn) / bins
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert chi2.ppf(0.001, bins - 1) < statistic < chi2.ppf(0.999, bins - 1)


def streams() -> dict[str, Tensor]:
    """Sequences that differ in one thing only, or in two that could cancel."""
    place = torch.arange(20_000)
    return {
        "base": Chance(1, 1).uniform("batches", 1, place),
        "purpose": Chance(1, 1).uniform("network", 1, place),
        "near purpose": Chance(1, 1).uniform("batchet", 1, place),
        "seed": Chance(2, 1).uniform("batches", 1, place),
        "round": Chance(1, 2).uniform("batches", 1, place),
        "seed for round": Chance(2, 0).uniform("batches", 1, place),
        "client": Chance(1, 1).uniform("batches", 2, place),
        "client for round": Chance(1, 0).uniform("batches", 2, place),
        "shifted": Chance(1, 1).uniform("batches", 1, place + 1),
        "swapped": Chance(1, 1).uniform("batches", place, 1),
        "fewer parts": Chance(1, 1).uniform("batches", place),
    }


def test_streams_are_independent() -> None:
    table = torch.stack(list(streams().values())).double()
    between = torch.corrcoef(table) - torch.eye(len(table))
    assert between.abs().max() < 4.5 / table.shape[1] ** 0.5
    for one, other in combinations(table, 2):
        assert (one == other).float().mean() < 1e-3


def test_every_bit_of_a_key_is_a_coin() -> None:
    keys = Chance(1, 1).key("bits", torch.arange(20_000))
    bits = (keys[:, None] >> torch.arange(64)) & 1
    assert (bits.float().mean(0) - 0.5).abs().max() < 4.5 * 0.5 / len(keys) ** 0.5
    flipped = ((keys[1:, None] ^ keys[:-1, None]) >> torch.arange(64)) & 1
    assert (flipped.float().mean(0) - 0.5).abs().max() < 4.5 * 0.5 / len(keys) ** 0.5


@given(seeds, st.integers(1, 40), st.data())
def test_a_choice_is_distinct_and_rising(seed: int, total: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, total))
    chosen = Chance(seed, 1).choose("select", count, total).tolist()
    assert len(set(chosen)) == count
    assert chosen == sorted(chosen)
    assert all(0 <= one < total for one in chosen)


def test_everyone_is_chosen_about_equally_often() -> None:
    rounds, count, total = 3000, 5, 12
    times = torch.zeros(total)
    together = 0
    for number in range(rounds):
        chosen = Chance(4, number).choose("select", count, total)
        times[chosen] += 1
        together += int((chosen <= 1).sum() == 2)
    share = count / total
    assert (times / rounds - share).abs().max() < 4 * (share * (1 - share) / rounds) ** 0.5
    both = share * (count - 1) / (total - 1)  # neighbours are no more often together than others
    assert abs(together / rounds - both) < 4 * (both * (1 - both) / rounds) ** 0.5
