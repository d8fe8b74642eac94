"""Synthetic spoken digits: sizes, speakers, and that words differ more than utterances of a word."""

from __future__ import annotations

import numpy as np
import pytest

from fedloom.data.spoken import BANDS, DIGITS, SAMPLES, _mel, _source, spoken
from fedloom.errors import BadExperiment


@pytest.fixture(scope="module")
def data():
    """The data as they come."""
    return spoken()


def test_sizes_and_types(data):
    assert data.x_train.shape == (1600, 1, 32, 32)
    assert data.x_test.shape == (400, 1, 32, 32)
    assert (data.x_train.dtype, data.y_train.dtype) == (np.float32, np.int64)
    assert (data.classes, data.vocabulary, data.class_names) == (10, 0, DIGITS)
    assert data.client_names[:2] == ("speaker-00", "speaker-01")
    assert len(data.client_names) == 40
    assert data.divided
    np.testing.assert_allclose((data.x_train.mean(), data.x_train.std()), (0, 1), atol=1e-5)


def test_every_speaker_says_every_digit_in_both_parts(data):
    for part, count in (("train", 4), ("test", 1)):
        y, whose = getattr(data, f"y_{part}"), getattr(data, f"client_{part}")
        table = np.zeros((40, 10), int)
        np.add.at(table, (whose, y), 1)
        assert (table == count).all()


def test_no_utterance_is_in_both_parts(data):
    assert not {x.tobytes() for x in data.x_train} & {x.tobytes() for x in data.x_test}


def test_the_seed_decides_and_a_speaker_does_not_depend_on_the_others(data):
    one, same, other = spoken(3, seed=5), spoken(3, seed=5), spoken(3, seed=6)
    for first, second in zip(one[1:7], same[1:7]):
        np.testing.assert_array_equal(first, second)
    assert not np.allclose(one.x_train, other.x_train)
    few = spoken(2)
    scale = np.polyfit(few.x_train[:80].ravel(), data.x_train[:80].ravel(), 1)  # the scale is that of all speakers
    np.testing.assert_allclose(np.polyval(scale, few.x_train[:80]), data.x_train[:80], atol=1e-4)


def test_the_nearest_word_of_the_own_speaker_is_mostly_the_right_one():
    quiet = spoken(10, repeats=10, noise=0)
    right = {"own": 0, "other": 0}
    spectra = [x.mean(-1).reshape(len(x), -1) for x in (quiet.x_train, quiet.x_test)]  # not when, but what
    for x, y, whose in zip(spectra[1], quiet.y_test, quiet.client_test):
        away = ((spectra[0] - x) ** 2).sum(1)
        for name, wanted in (("own", quiet.client_train == whose), ("other", quiet.client_train != whose)):
            near = np.flatnonzero(wanted)[away[wanted].argmin()]
            right[name] += int(quiet.y_train[near] == y)
    assert right["own"] > right["other"] > 2 * len(quiet.y_test) / 10  # speakers differ, and words are no chance


def test_more_noise_makes_words_more_alike():
    def apart(noise: float) -> float:
        x, y = (given := spoken(8, noise=noise)).x_train, given.y_train
        means = np.stack([x[y == digit].mean(0) for digit in range(10)])
        return float(means.std(0).mean() / x.std(0).mean())

    quiet, usual, loud = (apart(noise) for noise in (0, 0.1, 5))
    assert quiet > usual > 1.1 * loud


def test_a_voice_has_its_pitch():
    pitch = np.array([100.0, 200.0])
    voice, _ = _source(np.random.default_rng(0), pitch)
    assert voice.shape == (2, 32, 129)
    bins = 8000 / 256
    for one, hertz in zip(voice.mean(1), pitch):
        strongest = one[round(0.5 * hertz / bins) + 1 : round(1.5 * hertz / bins) + 1].argmax()
        assert abs((strongest + round(0.5 * hertz / bins) + 1) * bins - hertz) < 1.2 * bins


def test_filters_cover_all_frequencies():
    filters = _mel()
    assert filters.shape == (129, BANDS)
    assert (filters >= 0).all()
    assert (filters.sum(0) > 0).all()
    assert (np.diff(filters.argmax(0)) >= 0).all()
    assert SAMPLES == 256 + 31 * 160


@pytest.mark.parametrize("set_to", [{"speakers": 0}, {"repeats": 1}, {"noise": -1}, {"seed": -1}, {"noise": "loud"}])
def test_settings_that_make_no_sense(set_to):
    with pytest.raises(BadExperiment, match=next(iter(set_to))):
        spoken(**set_to)
