"""Targets become what a goal takes, or an error says what is wrong with them and which goal they are for."""

from __future__ import annotations

import numpy as np
import pytest

from fedloom.data.dataset import Dataset
from fedloom.data.prepare import from_arrays
from fedloom.data.targets import strata_of
from fedloom.errors import BadData
from fedloom.goals import binary, classes, labels, next_token, numbers, own, pixels, tokens

X = np.random.default_rng(0).random((6, 3)).astype(np.float32)
IMAGES = np.zeros((6, 1, 4, 4), np.float32)
WORDS = np.array([[1, 2, 3], [2, 0, 0], [3, 3, 1], [1, 1, 0], [2, 3, 0], [3, 0, 0]])


def made(y, goal, x=X, **more) -> Dataset:
    """Six training examples and the first four as test examples."""
    y_test = None if y is None else y[:4]
    return from_arrays("mine", {"x_train": x, "y_train": y, "x_test": x[:4], "y_test": y_test, **more}, goal=goal)


@pytest.mark.parametrize(
    ("goal", "x", "y", "kind", "shape", "width"),
    [
        (classes(), X, np.array([0, 1, 2, 0, 1, 2], np.uint8), np.int64, (6,), 3),
        (classes(), X, np.array([[0], [1], [2], [0], [1], [2]], np.int32), np.int64, (6,), 3),
        (binary(), X, np.array([True, False, True, True, False, False]), np.int64, (6,), 1),
        (labels(), X, np.eye(6, 5, dtype=np.uint8), np.int64, (6, 5), 5),
        (numbers(), X, np.linspace(-3, 3, 6), np.float32, (6,), 1),
        (numbers(), X, np.arange(6), np.float32, (6,), 1),
        (numbers(), X, np.ones((6, 2)), np.float32, (6, 2), 2),
        (tokens(), WORDS, np.where(WORDS > 0, WORDS % 2, -100), np.int64, (6, 3), 2),
        (next_token(), WORDS, None, np.int64, (6, 3), 4),
        (next_token(), WORDS, np.zeros(6, int), np.int64, (6, 3), 4),
        (pixels(), IMAGES, np.full((6, 4, 4), 255, np.uint8), np.int64, (6, 4, 4), 1),
        (pixels(), IMAGES, np.tile(np.arange(4, dtype=np.uint8), (6, 4, 1)), np.int64, (6, 4, 4), 4),
        (own(lambda a, b: a[:, 0]), X, np.arange(6), np.int64, (6,), 6),
        (own(lambda a, b: a[:, 0]), X, np.ones((6, 2)), np.float32, (6, 2), 2),
    ],
)
def test_targets_of_every_goal(goal, x, y, kind, shape, width):
    data = made(y, goal, x)
    assert data.y_train.dtype == kind
    assert data.y_train.shape == shape
    assert goal.outputs(data) == width


@pytest.mark.parametrize(
    ("goal", "x", "y", "says"),
    [
        (classes(), X, np.linspace(0, 1, 6), r"y_train, row 1 holds 0.2; expected a whole number.*for goal numbers"),
        (
            classes(),
            X,
            np.eye(6, dtype=int),
            r"shape \(6, 6\); goal 'classes' needs classes.*labels \(0 or 1\) or tokens",
        ),
        (classes(), X, None, "array y_train is missing"),
        (binary(), X, np.arange(6), "row 2 holds 2; expected a label from 0 to 1"),
        (binary(), X, np.eye(6), r"shape \(6, 6\); goal 'binary' needs 0 or 1 \[n\]"),
        (labels(), X, np.arange(6), r"shape \(6,\); goal 'labels' needs 0 or 1 \[n, k\]; .* goal classes"),
        (labels(), X, 2 * np.eye(6, dtype=int), "row 0 holds 2; expected a label from 0 to 1"),
        (numbers(), X, np.array([0, 1, np.nan, 2, 3, 4]), "row 2 holds nan; expected finite float32"),
        (numbers(), X, np.array([0, 1, 1e300, 2, 3, 4]), r"row 2 holds 1e\+300; expected finite float32"),
        (tokens(), WORDS, np.arange(6), r"shape \(6,\); goal 'tokens' needs"),
        (tokens(), WORDS, np.where(WORDS > 2, -1, 0), "row 0 holds -1; expected a label from 0 to 0, or -100"),
        (next_token(), X, None, r"makes targets from tokens, and inputs are float32 \[6, 3\]"),
        (pixels(), IMAGES, np.ones((6, 4), int), r"goal 'pixels' needs classes, whole numbers from 0, \[n, k, k\]"),
    ],
)
def test_targets_that_do_not_fit_are_refused(goal, x, y, says):
    with pytest.raises(BadData, match=says):
        made(y, goal, x)


def test_texts_are_no_numbers():
    with pytest.raises(BadData, match=r"holds texts \('high', 'low', ...\); goal 'numbers' needs numbers"):
        made(np.array(["low", "high"] * 3), numbers())


def test_rows_of_targets_have_one_shape():
    with pytest.raises(BadData, match=r"y_train and y_test have shapes \(2,\) and \(3,\)"):
        made(np.ones((6, 2)), numbers(), y_test=np.ones((4, 3)))


def test_labels_next_to_derived_targets_become_strata():
    goal = next_token()
    data = made(np.array([3, 3, 7, 7, 3, 9]), goal, WORDS)
    assert strata_of(data, goal).tolist() == [0, 0, 1, 1, 0, 2]
    np.testing.assert_array_equal(data.y_train, goal.derive(WORDS))
    assert strata_of(made(np.zeros(6, int), goal, WORDS), goal) is None


def test_strata_come_from_the_data_else_from_classes():
    y = np.array([0, 1, 0, 1, 1, 0])
    assert strata_of(made(y, classes()), classes()).tolist() == y.tolist()
    assert strata_of(made(y, numbers()), numbers()) is None
    told = made(y, numbers(), stratum_train=np.array(["b", "a", "c", "b", "a", "c"]))
    assert strata_of(told, numbers()).tolist() == [1, 0, 2, 1, 0, 2]


def test_names_of_classes_and_clients_are_kept():
    y, client = np.array(["cat", "dog", "ant"] * 2), np.array(["anna", "ben"] * 3)
    data = made(y, classes(), client_train=client, client_test=np.array(["ben", "cem", "ben", "anna"]))
    assert data.class_names == ("ant", "cat", "dog")
    assert data.y_train.tolist() == [1, 2, 0, 1, 2, 0]
    assert data.client_names == ("anna", "ben", "cem")
    assert data.client_train.tolist() == [0, 1] * 3
    assert data.client_test.tolist() == [1, 2, 1, 0]


def test_texts_of_whole_numbers_are_these_numbers():
    data = made(np.array(["0", "10", "2", "0", "10", "2"]), classes(), client_train=np.array(list("998899")))
    assert data.y_train.tolist() == [0, 10, 2, 0, 10, 2]
    assert data.class_names is data.client_names is None
    assert data.client_train.tolist() == [9, 9, 8, 8, 9, 9]
