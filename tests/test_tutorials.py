"""What the tutorials train learns in a short form; `test_docs` runs the pages themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedloom import Dataset, Experiment, load_data, run
from fedloom.data.load import data_folder
from fedloom.runs.result import Result


def short(data: str, **changes: Any) -> Result:
    """A few rounds."""
    return run(Experiment(data=data, **{"rounds": 4, "per_round": 4, **changes}))


def test_numbers_are_closer_than_their_mean() -> None:
    result = short("diabetes", goal="numbers", rounds=10, training={"rate": 0.02})
    assert result.goal.score.best == "low"
    mean = float(np.sqrt(np.mean(load_data("diabetes").y_test ** 2)))
    assert mean == pytest.approx(1, abs=0.01)
    assert result.score is not None
    assert result.score < 0.9 * mean
    assert result.rounds[-1]["r2"] > 0.2


def test_the_next_character_is_no_longer_any() -> None:
    roles = {"name": "shakespeare", "settings": {"roles": 6}}
    result = run(Experiment(data=roles, goal="next-token", clients=6, per_round=4, rounds=3, training={"epochs": 1}))
    assert result.score is not None
    assert result.score < 25  # of 63 characters
    assert result.rounds[0]["score"] > result.score
    assert result.rounds[-1]["personal_score"] is not None


def test_pixels_have_classes() -> None:
    result = short("shapes", goal="pixels", augment=["flip", {"name": "crop", "settings": {"pad": 2}}], rounds=6,
                   training={"epochs": 1, "rate": 0.3})  # fmt: skip
    assert result.score is not None
    assert result.score > 0.22  # a quarter of 0.88, the ground alone, is 0.22
    assert result.rounds[-1]["loss"] < 0.8 * np.log(4)


def test_words_of_many_speakers() -> None:
    result = short("spoken", rounds=6, augment=["noise"], model="mlp")
    assert result.score is not None
    assert result.score > 0.3
    assert result.rounds[-1]["personal_accuracy"] > 0.3


def test_pictures_that_are_cropped_and_mirrored() -> None:
    """With the first pictures of CIFAR-10 itself."""
    if not (data_folder() / "cifar10.npz").is_file():
        pytest.skip("cifar10.npz is not in the data folder")
    whole = load_data("cifar10")
    data = Dataset("cifar10", whole.x_train[:2000], whole.y_train[:2000], whole.x_test[:500], whole.y_test[:500],
                   None, None, 10, 0)  # fmt: skip
    chosen: dict[str, Any] = {
        "model": "spu-cifar", "partition": "iid", "clients": 5, "per_round": 5, "rounds": 4,
        "training": {"epochs": 2, "batch": 20, "rate": 0.05},
    }  # fmt: skip
    moved = run(Experiment(**chosen, augment=["crop", "flip"]), data=data)
    assert moved.score is not None
    assert moved.score > 0.2
    assert moved.score != run(Experiment(**chosen), data=data).score
