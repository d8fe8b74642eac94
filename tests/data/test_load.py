"""Datasets by name and by path, from files written here."""

import hashlib
import sys
import zipfile

import numpy as np
import pytest

from fedloom.data.load import DATASETS, MADE, data_folder, load
from fedloom.errors import BadData, BadExperiment


def images(shape=(28, 28), rows=20):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (rows, *shape), np.uint8), (np.arange(rows) % 10).astype(np.uint8)
    return {"x_train": x, "y_train": y, "x_test": x[:5], "y_test": y[:5]}


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch, tmp_path):
    """No data of the machine and no downloader."""
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "datasets", None)


def test_digits():
    data = load("digits")
    assert data.x_train.shape == (1438, 1, 8, 8)
    assert data.x_test.shape == (359, 1, 8, 8)
    assert data.x_train.dtype == np.float32
    assert (data.x_train.min(), data.x_train.max()) == (0, 1)
    assert data.classes == 10
    shares = np.bincount(data.y_test) / np.bincount(np.concatenate([data.y_train, data.y_test]))
    np.testing.assert_allclose(shares, 0.2, atol=0.003)


def test_digits_never_change():
    content = b"".join(array.tobytes() for array in load("digits")[1:5])
    assert hashlib.sha256(content).hexdigest() == "154dc918ce5fb887988e6cb1a27b66b12a2f24591ccb31d8b11f2094d76b250e"


def test_every_named_set_has_a_line_and_loads_or_says_what_is_missing(tmp_path):
    for name, about in DATASETS.items():
        assert about
        if name in MADE:
            assert load(name).name == name
        else:
            with pytest.raises(BadData, match=f"data '{name}' are missing") as caught:
                load(name)
            assert str(tmp_path) in str(caught.value)


def test_the_missing_file_is_described(tmp_path):
    with pytest.raises(BadData) as caught:
        load("cifar100")
    for part in (str(tmp_path / "cifar100.npz"), "uint8 [n, 32, 32, 3]", "integers 0 to 99", "fedloom[hub]"):
        assert part in str(caught.value)
    with pytest.raises(BadData) as caught:
        load("ag-news", tmp_path / "other")
    assert str(tmp_path / "other" / "ag_news_train.csv") in str(caught.value)


def test_the_folder_is_argument_then_variable_then_cache(monkeypatch, tmp_path):
    assert data_folder() == tmp_path
    monkeypatch.delenv("FEDLOOM_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder() == tmp_path / "cache" / "fedloom"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert data_folder() == tmp_path / "home" / ".cache" / "fedloom"
    (tmp_path / "given").mkdir()
    np.savez(tmp_path / "given" / "mnist.npz", **images())
    assert load("mnist", tmp_path / "given").name == "mnist"


def test_mnist_has_the_usual_scale(tmp_path):
    given = images()
    np.savez(tmp_path / "mnist.npz", **given)
    data = load("mnist")
    assert data.x_train.shape == (20, 1, 28, 28)
    np.testing.assert_allclose(data.x_train[:, 0], (given["x_train"] / 255 - 0.1307) / 0.3081, atol=1e-5)


def test_cifar10_has_the_usual_scale_by_colour(tmp_path):
    given = images((32, 32, 3))
    np.savez(tmp_path / "cifar10.npz", **given)
    data = load("cifar10")
    expected = (given["x_test"] / 255 - [0.4914, 0.4822, 0.4465]) / [0.2470, 0.2435, 0.2616]
    np.testing.assert_allclose(data.x_test, expected.transpose(0, 3, 1, 2), atol=1e-5)


def test_a_named_file_of_the_wrong_shape_or_label_is_refused(tmp_path):
    np.savez(tmp_path / "fashion_mnist.npz", **images((8, 8)))
    with pytest.raises(BadData, match=r"fashion_mnist.npz: array x_train has rows of shape \(1, 8, 8\)"):
        load("fashion-mnist")
    np.savez(tmp_path / "mnist.npz", **images() | {"y_train": np.arange(20)})
    with pytest.raises(BadData, match=r"mnist\.npz: array y_train, row 10 holds 10; expected a label from 0 to 9"):
        load("mnist")


def test_sensor_data_keep_their_values_and_clients(tmp_path):
    x, y = np.random.default_rng(0).standard_normal((12, 9, 128)).astype(np.float16), np.arange(12) % 6
    people = {"client_train": np.arange(12) % 3 + 1, "client_test": np.full(12, 30)}
    np.savez(tmp_path / "uci-har.npz", x_train=x, y_train=y, x_test=x, y_test=y, **people)
    data = load("uci-har")
    np.testing.assert_array_equal(data.x_train, x.astype(np.float32))
    assert data.client_train.tolist() == people["client_train"].tolist()
    assert data.client_test.tolist() == [30] * 12


def test_an_npz_by_path_or_inside_the_folder(tmp_path):
    np.savez(tmp_path / "mine.npz", **images((6, 5, 3)))
    for name in (str(tmp_path / "mine.npz"), "mine.npz"):
        data = load(name)
        assert (data.name, data.x_train.shape, data.classes) == ("mine", (20, 3, 6, 5), 10)


def test_floats_of_an_npz_stay(tmp_path):
    x = np.random.default_rng(0).random((5, 2, 3))
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=np.arange(5), x_test=x, y_test=np.arange(5))
    np.testing.assert_array_equal(load("mine.npz").x_train, x.astype(np.float32))


@pytest.mark.parametrize("keep", [0, 1, 10, 100, 0.5, 0.9, -1])
def test_a_truncated_npz_is_named(tmp_path, keep):
    path = tmp_path / "mine.npz"
    np.savez(path, **images())
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if 0 < keep < 1 else keep])
    with pytest.raises(BadData, match=r"mine\.npz"):
        load("mine.npz")


def test_every_damaged_byte_is_noticed_or_harmless(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez_compressed(path, **images((4, 4)))
    content = path.read_bytes()
    for place in range(0, len(content), 37):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x41]) + content[place + 1 :])
        try:
            shape = load("mine.npz").x_train.shape
        except BadData as error:
            shape = None if "mine.npz" in str(error) else "no name"
        assert shape in ((20, 1, 4, 4), None)


def test_nothing_is_unpickled(tmp_path):
    np.savez(tmp_path / "mine.npz", **images() | {"y_train": np.array([object()] * 20, object)}, allow_pickle=True)
    with pytest.raises(BadData, match=r"mine.npz: array y_train holds Python objects"):
        load("mine.npz")


def test_a_header_that_claims_too_much_is_refused(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, **images())
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    members["x_train.npy"] = members["x_train.npy"].replace(b"(20, 28, 28), }     ", b"(1099511627776, 28),}")
    with zipfile.ZipFile(path, "w") as new:
        for name, content in members.items():
            new.writestr(name, content)
    with pytest.raises(BadData, match=r"mine.npz: array x_train cannot be read"):
        load("mine.npz")


def test_missing_and_strange_files_are_named(tmp_path):
    with pytest.raises(BadData, match=r"gone\.npz is neither here nor in .*; expected an \.npz with arrays x_train"):
        load("gone.npz")
    with pytest.raises(BadData, match=r"gone\.csv is neither here nor in"):
        load("gone.csv")
    (tmp_path / "one.npz").write_bytes(b"plainly not a zip file")
    with pytest.raises(BadData, match=r"one\.npz"):
        load("one.npz")
    with (tmp_path / "single.npz").open("wb") as file:
        np.save(file, np.arange(3))
    with pytest.raises(BadData, match="found a single array"):
        load("single.npz")


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("minst", {}, "did you mean 'mnist'"),
        ("digits.txt", {}, "or give the path of an .npz"),
        ("digits", {"length": 3}, "unknown setting of data 'digits' 'length'"),
        ("ag-news", {"lenght": 3}, "did you mean 'length'"),
        ("synthetic", {"alhpa": 3}, "did you mean 'alpha'"),
        ("synthetic", {"alpha": -1}, "alpha is -1"),
        ("synthetic", {"clients": 0}, "clients is 0"),
        ("synthetic", {"iid": 1}, "iid is 1; expected true or false"),
    ],
)
def test_wrong_names_and_settings_are_refused(name, values, says):
    with pytest.raises(BadExperiment, match=says):
        load(name, **values)


def test_synthetic_is_repeatable_and_its_dials_work():
    data = load("synthetic", alpha=1, beta=1, clients=8, seed=3)
    for one, again in zip(data, load("synthetic", alpha=1, beta=1, clients=8, seed=3), strict=True):
        np.testing.assert_array_equal(one, again)
    assert set(data.client_train) == set(data.client_test) == set(range(8))
    assert data.x_train.shape[1] == 60
    assert data.classes == 10
    more = load("synthetic", alpha=1, beta=1, clients=9, seed=3)
    np.testing.assert_array_equal(more.x_train[more.client_train < 8], data.x_train)

    def centres(data):
        return np.array([data.x_train[data.client_train == client].mean(axis=0) for client in range(8)])

    def spread(**values):  # over clients, of the middle of their inputs
        return centres(load("synthetic", clients=8, seed=3, **values)).mean(axis=1).std()

    assert centres(data).std(axis=0).mean() > 0.5
    assert centres(load("synthetic", clients=8, seed=3, iid=True)).std(axis=0).mean() < 0.1
    assert spread(beta=0) < 0.5 < 2 < spread(beta=5)


def test_synthetic_alpha_changes_no_label_as_published():
    assert np.mean(load("synthetic", alpha=0).y_train == load("synthetic", alpha=2).y_train) > 0.999
