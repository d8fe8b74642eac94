"""A missing set is fetched once, written whole, and read from the folder afterwards."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from fedloom.data.load import load
from fedloom.errors import BadData


class Rows(list):
    """What the downloader returns: rows that can also be asked for a column."""

    def __getitem__(self, key):
        return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)


def hub(monkeypatch, answer):
    """A stand-in for the downloader, and the list of what it was asked."""
    asked = []

    def load_dataset(repository, split):
        asked.append((repository, split))
        return answer(split)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return asked


def pictures(count, **more):
    rng = np.random.default_rng(count)
    rows = [
        {"image": rng.integers(0, 256, (28, 28), np.uint8), "label": i % 26, "character": i % 62} for i in range(count)
    ]
    return Rows(row | {key: value(i) for key, value in more.items()} for i, row in enumerate(rows))


def test_fetched_once_then_offline(monkeypatch, tmp_path):
    rows = Rows(row | {"label": row["label"] % 10} for row in pictures(30))
    asked = hub(monkeypatch, lambda split: rows if split == "train" else Rows(rows[:10]))
    first = load("mnist", tmp_path)
    assert asked == [("ylecun/mnist", "train"), ("ylecun/mnist", "test")]
    assert [path.name for path in tmp_path.iterdir()] == ["mnist.npz"]
    monkeypatch.setitem(sys.modules, "datasets", None)
    again = load("mnist", tmp_path)
    np.testing.assert_array_equal(first.x_train, again.x_train)
    assert (len(again.y_train), len(again.y_test)) == (30, 10)


def test_emnist_letters_keeps_the_first_ten(monkeypatch, tmp_path):
    hub(monkeypatch, lambda split: pictures(52))
    data = load("emnist-letters-10", tmp_path)
    assert np.bincount(data.y_train).tolist() == [2] * 10
    assert len(data.x_train) == 20


def test_emnist_cuts_its_test_set_and_keeps_the_writers(monkeypatch, tmp_path):
    asked = hub(monkeypatch, lambda split: pictures(620, writer_id=lambda i: f"f{i % 7:04}"))
    data = load("emnist", tmp_path)
    assert asked == [("flwrlabs/femnist", "train")]
    assert np.bincount(data.y_test).tolist() == [2] * 62
    assert set(data.client_train) == set(range(7))
    assert len(data.client_test) == len(data.y_test) == 124


def test_texts_are_written_as_tables(monkeypatch, tmp_path):
    rows = Rows({"text": f'a "quoted",\ntext {i}', "label": i % 4} for i in range(8))
    hub(monkeypatch, lambda split: rows)
    data = load("ag-news", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ag_news_test.csv", "ag_news_train.csv"]
    assert data.y_train.tolist() == [0, 1, 2, 3] * 2
    assert (data.x_train[:, :3] > 1).all()


@pytest.mark.parametrize("error", [OSError("no route"), ValueError("no such split"), KeyError("img")])
def test_a_failed_download_says_which_file_to_put_where(monkeypatch, tmp_path, error):
    def fail(split):
        raise error

    hub(monkeypatch, fail)
    with pytest.raises(BadData) as caught:
        load("cifar10", tmp_path)
    for part in ("uoft-cs/cifar10", str(error), str(tmp_path / "cifar10.npz"), "fedloom[hub]"):
        assert part in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_half_written_file_is_never_left(monkeypatch, tmp_path):
    hub(monkeypatch, lambda split: pictures(30))

    def full(file, **arrays):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(BadData, match="disk full"):
        load("mnist", tmp_path)
    assert not list(tmp_path.iterdir())
