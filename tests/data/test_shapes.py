"""Drawn shapes: classes of pixels, unlike clients, and the same drawings from the same seed."""

from __future__ import annotations

import numpy as np
import pytest

from fedloom.data.shapes import KINDS, shapes
from fedloom.errors import BadExperiment


def test_sizes_and_types():
    data = shapes()
    assert (data.x_train.shape, data.y_train.shape) == ((1200, 1, 24, 24), (1200, 24, 24))
    assert (data.x_test.shape, data.y_test.shape) == ((300, 1, 24, 24), (300, 24, 24))
    assert (data.x_train.dtype, data.y_train.dtype) == (np.float32, np.int64)
    assert (data.classes, data.vocabulary) == (len(KINDS) + 1, 0)
    assert data.class_names == ("background", *KINDS)
    assert np.bincount(data.client_train).tolist() == [60] * 20
    assert np.bincount(data.client_test).tolist() == [15] * 20
    assert data.divided
    np.testing.assert_allclose((data.x_train.mean(), data.x_train.std()), (0, 1), atol=1e-5)


def test_every_image_has_a_shape_and_every_kind_is_often_seen():
    data = shapes()
    for y in (data.y_train, data.y_test):
        assert (y.reshape(len(y), -1) > 0).any(1).all()
        share = np.bincount(y.ravel()) / y.size
        assert share[0] < 0.95
        assert (share[1:] > 0.01).all()


def test_shapes_are_brighter_than_what_is_around_them():
    data = shapes()
    inside = data.y_train > 0
    x = data.x_train[:, 0]
    within = np.where(inside, x, 0).sum((1, 2)) / inside.sum((1, 2))
    around = np.where(inside, 0, x).sum((1, 2)) / (~inside).sum((1, 2))
    assert (within > around).mean() > 0.99


def test_a_disc_a_triangle_and_a_cross_have_their_areas():
    data = shapes(clients=8, examples=200, size=48)
    kinds, y = data.stratum_train, data.y_train
    single = [len(np.unique(one)) == 2 for one in y]  # background and one kind
    fill = {}
    for kind in range(3):
        shares = []
        for one in y[np.array(single) & (kinds == kind)]:
            down, right = np.nonzero(one)
            box = (np.ptp(down) + 1) * (np.ptp(right) + 1)
            if max(np.ptp(down), np.ptp(right)) <= 14:  # a single shape
                shares.append(len(down) / box)
        fill[kind] = float(np.median(shares))
    assert 0.7 < fill[0] < 0.85  # pi / 4
    assert 0.45 < fill[1] < 0.6  # a half
    assert 0.38 < fill[2] < 0.5  # 7 / 16


def test_clients_differ_in_brightness_and_kinds():
    data = shapes()
    brightness = [data.x_train[data.client_train == k].mean() for k in range(20)]
    assert np.std(brightness) > 0.2
    seen = np.stack([np.bincount(data.stratum_train[data.client_train == k], minlength=3) for k in range(20)])
    assert (seen.max(1) > 0.6 * 60).sum() >= 5
    even = shapes(alpha=1e6)
    seen = np.stack([np.bincount(even.stratum_train[even.client_train == k], minlength=3) for k in range(20)])
    assert seen.max() < 0.6 * 60


def test_the_seed_decides_and_a_client_does_not_depend_on_the_others():
    one, same, other = shapes(seed=3), shapes(seed=3), shapes(seed=4)
    for first, second in zip(one[1:7], same[1:7]):
        np.testing.assert_array_equal(first, second)
    assert not np.array_equal(one.y_train, other.y_train)
    few = shapes(clients=3, seed=3)
    np.testing.assert_array_equal(few.y_train, one.y_train[: len(few.y_train)])


def test_no_image_is_in_both_parts():
    data = shapes()
    assert not {x.tobytes() for x in data.x_train} & {x.tobytes() for x in data.x_test}


def test_settings_count():
    data = shapes(clients=2, examples=7, size=16)
    assert data.x_train.shape == (12, 1, 16, 16)
    assert data.x_test.shape == (2, 1, 16, 16)


@pytest.mark.parametrize(
    "set_to", [{"clients": 0}, {"examples": 1}, {"size": 8}, {"alpha": 0}, {"seed": -1}, {"size": 24.0}]
)
def test_settings_that_make_no_sense(set_to):
    with pytest.raises(BadExperiment, match=next(iter(set_to))):
        shapes(**set_to)
