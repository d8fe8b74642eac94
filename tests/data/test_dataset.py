"""Bad arrays are refused with file, array and row; good ones become what a model expects."""

import numpy as np
import pytest

from fedloom.data.dataset import Dataset, check
from fedloom.data.prepare import from_arrays, renewed
from fedloom.data.targets import for_goal
from fedloom.errors import BadData
from fedloom.goals import classes


def arrays(**changes):
    """Six and four good examples, with some arrays changed; None takes one away."""
    rng = np.random.default_rng(0)
    good = {
        "x_train": rng.random((6, 3), np.float32),
        "y_train": np.arange(6) % 3,
        "x_test": rng.random((4, 3), np.float32),
        "y_test": np.arange(4) % 3,
    } | changes
    return {name: array for name, array in good.items() if array is not None}


def with_value(array, row, value):
    array = np.array(array, np.float64 if isinstance(value, float) else None)
    array[row] = value
    return array


X, Y = arrays()["x_train"], arrays()["y_train"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"y_test": None}, "f.npz: array y_test is missing; expected x_train, y_train, x_test, y_test, found x_test"),
        ({"x_train": with_value(X, (4, 1), np.nan)}, "f.npz: array x_train, row 4 holds nan"),
        ({"x_test": with_value(X[:4], (2, 0), -np.inf)}, "f.npz: array x_test, row 2 holds -inf"),
        ({"x_train": with_value(X, (5, 2), 1e39)}, r"array x_train, row 5 holds 1e\+39; expected finite float32"),
        ({"x_train": X.astype(object)}, "array x_train has type object"),
        ({"x_train": X.astype(complex)}, "array x_train has type complex128"),
        ({"x_train": X.astype(str)}, "array x_train has type <U"),
        ({"x_train": X[:, 0]}, r"array x_train has shape \(6,\); expected at least one example"),
        ({"x_train": X[:0], "y_train": Y[:0]}, r"array x_train has shape \(0, 3\)"),
        ({"x_test": X[:0], "y_test": Y[:0]}, r"array x_test has shape \(0, 3\)"),
        ({"y_train": Y[:5]}, "array x_train has 6 rows and y_train has 5"),
        ({"x_test": X[:4, :2]}, r"x_train and x_test have shapes \(3,\) and \(2,\)"),
        ({"y_train": with_value(Y, 3, -1)}, "array y_train, row 3 holds -1; expected a label from 0"),
        ({"y_train": with_value(Y, 2, 0.5)}, "array y_train, row 2 holds 0.5; expected a whole number"),
        ({"y_train": with_value(Y, 2, np.nan)}, "array y_train, row 2 holds nan; expected a whole number"),
        (
            {"y_train": with_value(Y, 1, 10**9)},
            "array y_train, row 1 holds 1000000000; expected a label from 0 to 999999",
        ),
        ({"y_train": -1 - Y}, "array y_train, row 0 holds -1"),
        ({"y_train": Y.astype(object)}, "array y_train has type object"),
        ({"y_train": Y[:, None] * np.ones(2, int)}, r"array y_train has shape \(6, 2\); goal 'classes' needs classes"),
        ({"y_test": Y[:4, None, None]}, r"array y_test has shape \(4, 1, 1\); goal 'classes' needs .*goal pixels"),
        ({"y_test": np.array([0, 1, 3, 0])}, "array y_test, row 2 holds 3; expected a label from 0 to 2"),
        ({"client_train": np.arange(5)}, "array client_train has 5 rows, x_train has 6"),
        ({"client_test": np.arange(4) + 0.5}, "array client_test, row 0 holds 0.5; expected a whole number"),
        ({"stratum_train": np.arange(5)}, "array stratum_train has 5 rows, x_train has 6"),
        ({"stratum_train": np.arange(6) + 0.5}, "array stratum_train, row 0 holds 0.5; expected a whole number"),
    ],
)
def test_bad_arrays_are_named(changes, says):
    with pytest.raises(BadData, match=says):
        from_arrays("f", arrays(**changes), "f.npz")


def test_the_client_of_a_bad_row_is_named():
    ids = np.array([4, 4, 9, 9, 5, 5])
    with pytest.raises(BadData, match=r"x_train, row 3 \(client 9\) holds nan"):
        from_arrays("f", arrays(x_train=with_value(X, (3, 0), np.nan), client_train=ids), "f.npz")
    with pytest.raises(BadData, match=r"y_train, row 4 \(client 5\) holds 7"):
        from_arrays("f", arrays(y_train=with_value(Y, 4, 7), client_train=ids), "f.npz", classes=3)


def test_a_bad_value_beyond_the_first_block_has_its_row():
    x, y = np.zeros((10_000, 2)), np.zeros(10_000, int)
    x[9_001, 1] = np.nan
    with pytest.raises(BadData, match="row 9001 holds nan"):
        check(arrays(x_train=x, y_train=y, x_test=x[:1], y_test=y[:1]), "f.npz")


def test_a_dataset_is_made_ready_once():
    data = from_arrays("mine", arrays())
    again = for_goal(renewed(data, "mine"), classes(), "mine")
    assert all(one is other for one, other in zip(again[1:5], data[1:5]))
    assert again[5:] == data[5:]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.bool_])
def test_numbers_become_float32_unchanged(dtype):
    x = X.astype(dtype)
    data = from_arrays("mine", arrays(x_train=x, x_test=x[:4]))
    assert data.x_train.dtype == np.float32
    np.testing.assert_array_equal(data.x_train, x.astype(np.float32))


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint64, np.float64, np.bool_])
def test_labels_become_int64(dtype):
    y = np.array([0, 1, 0, 1, 1, 0])
    data = from_arrays("mine", arrays(y_train=y.astype(dtype), y_test=y[:4].astype(dtype)))
    assert data.y_train.dtype == data.y_test.dtype == np.int64
    assert data.y_train.tolist() == y.tolist()
    assert data.classes == 2


@pytest.mark.parametrize(
    ("shape", "becomes"),
    [
        ((6, 5, 4), (6, 1, 5, 4)),
        ((6, 5, 4, 3), (6, 3, 5, 4)),
        ((6, 5, 4, 1), (6, 1, 5, 4)),
        ((6, 3, 5, 4), (6, 3, 5, 4)),
        ((6, 7), (6, 7)),
    ],
)
def test_bytes_are_standardised_images(shape, becomes):
    x = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    data = from_arrays("mine", arrays(x_train=x, x_test=x[:4]))
    assert data.x_train.shape == becomes
    assert data.x_train.dtype == np.float32
    assert data.x_train.flags.c_contiguous
    axes = (0, 2, 3) if len(becomes) == 4 else (0, 1)
    np.testing.assert_allclose(data.x_train.mean(axis=axes), 0, atol=1e-6)
    np.testing.assert_allclose(data.x_train.std(axis=axes), 1, atol=1e-5)
    np.testing.assert_array_equal(data.x_test, data.x_train[:4])


def test_colours_stay_with_their_pixels():
    x = np.random.default_rng(1).integers(0, 256, (6, 5, 4, 3), np.uint8)
    data = from_arrays("mine", arrays(x_train=x, x_test=x[:4]), scale=((0.5, 0.4, 0.3), (0.1, 0.2, 0.3)))
    np.testing.assert_allclose(data.x_train[2, 1, 3, 0], (x[2, 3, 0, 1] / 255 - 0.4) / 0.2, rtol=1e-5)


def test_a_constant_image_is_zero_not_nan():
    x = np.full((6, 5, 4), 9, np.uint8)
    assert (from_arrays("mine", arrays(x_train=x, x_test=x[:4])).x_train == 0).all()


def test_integers_are_tokens():
    x = np.arange(18).reshape(6, 3)
    data = from_arrays("mine", arrays(x_train=x, x_test=x[2:]))
    assert data.x_train.dtype == np.int64
    assert data.vocabulary == 18
    with pytest.raises(BadData, match="array x_test, row 1 holds -1 to 5; integers"):
        from_arrays("mine", arrays(x_train=x, x_test=with_value(x[:4], (1, 0), -1)))


def test_train_and_test_of_different_types_are_refused():
    with pytest.raises(BadData, match="x_train and x_test have types uint8 and float32"):
        from_arrays("mine", arrays(x_train=np.zeros((6, 3), np.uint8)))


def test_known_classes_stay_even_if_none_occurs():
    data = from_arrays("mine", arrays(client_train=np.arange(6, dtype=np.uint8)), classes=5)
    assert isinstance(data, Dataset)
    assert data.classes == 5
    assert data.client_train.dtype == np.int64
    assert data.client_test is None
