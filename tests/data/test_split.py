"""Each client's own split is disjoint, covering, repeatable, and leaves it something to train on."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedloom.data.partition import Partition, partition, split
from fedloom.errors import BadExperiment

FRACTIONS = st.sampled_from([(0.7, 0.0, 0.3), (1.0, 0.0, 0.0), (0.8, 0.1, 0.1), (0.05, 0.05, 0.9), (0.1, 0.6, 0.3)])


def of_sizes(sizes):
    indices = np.random.default_rng(0).permutation(sum(sizes))
    return Partition([np.sort(piece) for piece in np.split(indices, np.cumsum(sizes)[:-1])], 0, "")


@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=12), fractions=FRACTIONS, seed=st.integers(0, 99))
@settings(deadline=None)
def test_disjoint_covering_and_never_without_training(sizes, fractions, seed):
    part = of_sizes(sizes)
    parts = split(part, fractions, seed)
    for client, size in enumerate(sizes):
        pieces = [piece[client] for piece in parts]
        np.testing.assert_array_equal(np.sort(np.concatenate(pieces)), part.clients[client])
        assert all((np.diff(piece) > 0).all() for piece in pieces)
        assert (len(pieces[0]) > 0) == (size > 0)
        assert (len(pieces[2]) > 0) == (size > 1 and fractions[2] > 0)
        assert len(pieces[1]) == 0 or fractions[1] > 0
        for piece, fraction in zip(pieces, fractions):
            assert abs(len(piece) - fraction * size) <= 2


def test_the_same_seed_gives_the_same_split_and_another_another():
    part = of_sizes([30, 30])
    one, again, other = (split(part, seed=seed).test for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, again))
    assert not any(np.array_equal(a, b) for a, b in zip(one, other))


def test_a_client_splits_the_same_whoever_else_is_there():
    part = of_sizes([30, 20, 50])
    alone = Partition(part.clients[1:2], 0, "")
    np.testing.assert_array_equal(split(part).train[1], split(alone).train[0])


def test_fedspu_shares():
    part = partition("iid", np.zeros(1000, int), 10, 0)
    parts = split(part)
    assert [len(piece[0]) for piece in parts] == [70, 0, 30]


@pytest.mark.parametrize("fractions", [(0.0, 0.5, 0.5), (0.5, 0.5, 0.5), (0.7, 0.3), (1.2, -0.2, 0.0), ("a", 0, 1)])
def test_impossible_fractions_are_refused(fractions):
    with pytest.raises(BadExperiment, match="fractions is"):
        split(of_sizes([3]), fractions)
