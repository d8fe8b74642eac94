"""Lists in one array read like a list of arrays."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from fedloom.data.lists import Lists, from_ranges

many = st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=8)


def plain(lists: Lists) -> list[list[int]]:
    """As Python has it."""
    return [one.tolist() for one in lists]


def made(lists: list[list[int]]) -> Lists:
    """From Python's own."""
    return Lists.of([np.array(one, np.int64) for one in lists])


@given(many)
def test_they_read_like_a_list_of_arrays(lists: list[list[int]]) -> None:
    ours = made(lists)
    assert plain(ours) == lists
    assert len(ours) == len(lists)
    assert plain(ours[1:3]) == lists[1:3]
    assert ours.owner.tolist() == [client for client, one in enumerate(lists) for _ in one]
    assert ours.place.tolist() == [place for one in lists for place in range(len(one))]
    assert Lists.of(ours) is ours
    if lists:
        assert ours[-1].tolist() == lists[-1]


@given(many, st.randoms(use_true_random=False))
def test_some_clients_and_some_examples(lists: list[list[int]], random: object) -> None:
    ours = made(lists)
    chosen = ours.examples % 2 == 0
    assert plain(ours.where(chosen)) == [[k for k in one if k % 2 == 0] for one in lists]
    order = list(range(len(lists)))
    random.shuffle(order)  # type: ignore[attr-defined]
    assert plain(ours.at(np.array(order, np.int64))) == [lists[client] for client in order]


def test_ranges_may_overlap_and_be_empty() -> None:
    ours = from_ranges(np.array([9, 8, 7, 6]), np.array([1, 0, 3]), np.array([2, 4, 0]))
    assert plain(ours) == [[8, 7], [9, 8, 7, 6], []]
