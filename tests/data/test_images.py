"""Folders of pictures: their classes, clients and sizes."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from fedloom.data.from_images import from_images
from fedloom.data.load import load
from fedloom.errors import BadData, BadExperiment

RNG = np.random.default_rng(0)
KINDS = ("ant", "bee")


def write(path, shape=(6, 5, 3)):
    """A picture of random colours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = RNG.integers(0, 256, shape, np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def test_a_folder_for_every_class(tmp_path):
    drawn = {f"{kind}/{at}.png": write(tmp_path / kind / f"{at}.png") for kind in KINDS for at in range(10)}
    (tmp_path / "ant" / "notes.txt").write_text("no picture")
    data = load(str(tmp_path))
    assert data.class_names == KINDS
    assert data.x_train.shape == (16, 3, 6, 5)
    assert data.x_train.dtype == np.float32
    assert np.bincount(data.y_test).tolist() == [2, 2]
    np.testing.assert_allclose(data.x_train.mean(axis=(0, 2, 3)), 0, atol=1e-6)
    whole = np.concatenate([data.x_train, data.x_test])
    assert len(np.unique(whole.reshape(20, -1), axis=0)) == len(drawn)


def test_training_and_test_folders_with_clients_in_the_path(tmp_path):
    for part, count in (("train", 4), ("test", 2)):
        for kind in KINDS:
            for at in range(count):
                write(tmp_path / part / kind / f"camera{at % 2}" / f"{at}.png", (8, 8))
    data = from_images(tmp_path, 4, client=r"camera(\d)")
    assert data.x_train.shape == (8, 1, 4, 4)
    assert data.x_test.shape == (4, 1, 4, 4)
    assert data.y_train.tolist() == [0] * 4 + [1] * 4
    assert data.client_train.tolist() == [0, 0, 1, 1] * 2
    assert from_images(tmp_path, (3, 7), client="camera.").client_names == ("camera0", "camera1")
    assert from_images(tmp_path, (3, 7)).x_train.shape == (8, 1, 3, 7)


def test_a_grey_picture_among_colours_has_three_equal_ones(tmp_path):
    write(tmp_path / "ant" / "a.png", (4, 4, 3))
    write(tmp_path / "ant" / "b.png", (4, 4))
    write(tmp_path / "bee" / "c.png", (4, 4, 4))
    write(tmp_path / "bee" / "d.png", (4, 4, 3))
    assert from_images(tmp_path).x_train.shape[1:] == (3, 4, 4)


def test_progress_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("fedloom.data.from_images.PROGRESS_EVERY", -1)
    for at in range(3):
        write(tmp_path / "ant" / f"{at}.png")
    told = []
    from_images(tmp_path, tell=told.append)
    assert told == [f"read {at} of 3 pictures" for at in (1, 2, 3)]


def test_what_does_not_fit_is_named(tmp_path):
    with pytest.raises(BadData, match=r"no pictures in CLASS/FILE"):
        from_images(tmp_path)
    write(tmp_path / "ant" / "a.png", (4, 4))
    write(tmp_path / "bee" / "b.png", (4, 5))
    with pytest.raises(BadData, match=r"b\.png has 4x5 pixels and a\.png 4x4; say a size for all"):
        from_images(tmp_path)
    with pytest.raises(BadData, match=r"ant/a\.png: no client's name by 'x'"):
        from_images(tmp_path, 4, client="x")
    with pytest.raises(BadExperiment, match="client is '\\(', which is no regular expression"):
        from_images(tmp_path, 4, client="(")
    with pytest.raises(BadExperiment, match="size is 0; expected pixels"):
        from_images(tmp_path, 0)
    (tmp_path / "bee" / "b.png").write_bytes(b"no picture")
    with pytest.raises(BadData, match=r"b\.png cannot be read as a picture"):
        from_images(tmp_path, 4)
