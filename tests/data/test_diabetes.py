"""The diabetes table: shapes, scale, and a test set that the training rows know nothing of."""

from __future__ import annotations

import numpy as np
import pytest

from fedloom.data.diabetes import diabetes
from fedloom.errors import BadExperiment


def test_rows_and_types():
    data = diabetes()
    assert (data.x_train.shape, data.x_test.shape) == ((354, 10), (88, 10))
    assert (data.y_train.shape, data.y_test.shape) == ((354,), (88,))
    assert {part.dtype for part in data[1:5]} == {np.dtype(np.float32)}
    assert (data.classes, data.vocabulary, data.client_train) == (1, 0, None)


def test_inputs_and_targets_are_standardised_by_the_training_rows():
    data = diabetes()
    for part in (data.x_train, data.y_train):
        np.testing.assert_allclose(part.mean(0), 0, atol=1e-5)
        np.testing.assert_allclose(part.std(0), 1, atol=1e-5)
    assert abs(float(data.y_test.mean())) > 1e-3  # not by its own rows
    assert abs(float(data.y_test.std()) - 1) > 1e-3


def test_a_patient_is_in_one_part_only():
    data = diabetes()
    rows = {row.tobytes() for row in data.x_train}
    assert not rows & {row.tobytes() for row in data.x_test}
    assert len(rows) + len({row.tobytes() for row in data.x_test}) == 442


def test_strata_are_equal_parts_of_the_targets():
    assert diabetes().stratum_train is None
    data = diabetes(strata=4)
    assert data.stratum_train is not None
    assert np.bincount(data.stratum_train).tolist() == [88, 88, 89, 89]
    for low, high in zip(range(3), range(1, 4)):
        assert data.y_train[data.stratum_train == low].max() <= data.y_train[data.stratum_train == high].min()
    np.testing.assert_array_equal(data.y_train, diabetes().y_train)


@pytest.mark.parametrize("strata", [-1, 2.0, 1000])
def test_strata_that_make_no_sense(strata):
    with pytest.raises(BadExperiment, match="strata"):
        diabetes(strata=strata)


def test_it_is_the_same_every_time():
    for one, other in zip(diabetes()[1:5], diabetes()[1:5]):
        np.testing.assert_array_equal(one, other)


def test_rows_are_those_of_scikit_learn():
    from sklearn.datasets import load_diabetes

    table, data = load_diabetes(scaled=False), diabetes()
    whole = np.sort(np.concatenate([data.y_train, data.y_test]).astype(np.float64))
    slope, offset = np.polyfit(whole, np.sort(table.target), 1)
    np.testing.assert_allclose(whole * slope + offset, np.sort(table.target), atol=1e-3)
    assert 70 < slope < 85  # the table's units in one standard deviation


def test_a_line_explains_as_much_as_it_does_of_the_whole_table():
    data = diabetes()
    x, rest = (np.column_stack([part, np.ones(len(part))]) for part in (data.x_train, data.x_test))
    fitted = np.linalg.lstsq(x, data.y_train, rcond=None)[0]
    error = float(np.sqrt(np.mean((rest @ fitted - data.y_test) ** 2)))
    assert 0.6 < error < 0.8  # 0.7 of a standard deviation, as is known of this table
