"""Texts become the same ids every time."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedloom.data.text import encode
from fedloom.errors import BadExperiment


def test_commonest_first_then_alphabetical():
    train, test, vocabulary = encode(["B b a! C", "a b. d"], ["d B zebra", "?"], vocabulary_size=3, length=4)
    # b: 3 times, a: 2, then c before d; d and zebra are unknown (1), 0 is padding
    assert train.tolist() == [[2, 2, 3, 4], [3, 2, 1, 0]]
    assert test.tolist() == [[1, 2, 1, 0], [1, 0, 0, 0]]
    assert vocabulary == 5


@given(st.lists(st.text(), min_size=1, max_size=8), st.integers(1, 5), st.integers(1, 5))
def test_ids_stay_inside_and_no_row_is_all_padding(texts, size, length):
    train, test, vocabulary = encode(texts, texts[::-1], size, length)
    np.testing.assert_array_equal(train, test[::-1])
    assert train.shape == (len(texts), length)
    assert train.dtype == np.int64
    assert 0 <= train.min() <= train.max() < vocabulary <= size + 2
    assert (train[:, 0] > 0).all()


@pytest.mark.parametrize("values", [{"vocabulary_size": 0}, {"length": 0}, {"length": 1.5}])
def test_impossible_sizes_are_refused(values):
    with pytest.raises(BadExperiment, match=f"{next(iter(values))} is"):
        encode(["a"], ["a"], **values)
