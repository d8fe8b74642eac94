"""`load`, which reads a dataset by name or path."""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.accel.machine import cache_folder
from fedloom.data.dataset import NEEDED, Dataset
from fedloom.data.files import TABLES, client_codes, find_tables, pair, read_arrays, read_tables
from fedloom.data.hub import fetch
from fedloom.data.named import NAMED
from fedloom.data.prepare import from_arrays
from fedloom.data.sampling import held_out
from fedloom.data.synthetic import synthetic
from fedloom.data.text import encode
from fedloom.errors import BadData, BadExperiment, unknown

DATASETS = {
    "digits": "handwritten digits, 1,797 grey images of 8x8, 10 classes; comes with scikit-learn, needs no file",
    "synthetic": "invented data of unlike clients (Synthetic(alpha, beta) of FedProx), 10 classes, own clients",
    **{name: named.about for name, named in NAMED.items()},
}
TEXT_SETTINGS = ("vocabulary_size", "length")


def load(name: str, /, folder: Path | None = None, **settings: Any) -> Dataset:
    """Load a dataset by its name in `DATASETS`, or by the path of an .npz, a .csv, a .parquet or a folder of tables.

    Named datasets are read from `folder`, else from FEDLOOM_DATA, else from fedloom's cache folder. Texts take the
    settings `vocabulary_size` and `length`; 'synthetic' takes `alpha`, `beta`, `clients`, `seed` and `iid`.
    """
    if not isinstance(folder, str | Path | None):
        raise BadExperiment(f"folder of data '{name}' is {folder!r}; expected a path.")
    folder = data_folder() if folder is None else Path(folder)
    if name == "digits":
        _allow(name, settings, ())
        return _digits()
    if name == "synthetic":
        _allow(name, settings, tuple(signature(synthetic).parameters))
        return synthetic(**settings)
    if name in NAMED:
        return _named(name, folder, settings)
    path = _path(name, folder)
    if path.suffix == ".npz":
        _allow(name, settings, ())
        return from_arrays(path.stem, read_arrays(path), str(path))
    _allow(name, settings, TEXT_SETTINGS)
    return _texts(path.stem, *find_tables(path), settings)


def settings_of(name: str) -> dict[str, Any]:
    """A dataset's settings and their defaults."""
    if name == "synthetic":
        return {p.name: p.default for p in signature(synthetic).parameters.values()}
    numbers = name == "digits" or (NAMED[name].rows if name in NAMED else name.endswith(".npz"))
    return {} if numbers else {key: signature(encode).parameters[key].default for key in TEXT_SETTINGS}


def data_folder() -> Path:
    """The folder of named datasets, unless another is given."""
    if given := os.environ.get("FEDLOOM_DATA"):
        return Path(given).expanduser()
    return cache_folder()


def _allow(name: str, settings: Mapping[str, Any], names: tuple[str, ...]) -> None:
    """Refuse settings that a dataset does not have."""
    for setting in settings:
        if setting not in names:
            raise BadExperiment(unknown(f"setting of data '{name}'", setting, names))


def _path(name: str, folder: Path) -> Path:
    """The path itself, or that in the data folder."""
    paths = (Path(name).expanduser(), folder / name)
    for path in paths:
        if path.is_dir() or (path.suffix in (".npz", *TABLES) and (path.is_file() or any(pair(path)))):
            return path
    if paths[0].suffix in (".npz", *TABLES):
        raise BadData(
            f"{name} is neither here nor in {folder}; expected an .npz with arrays {', '.join(NEEDED)}, or a table "
            "with columns text and label (NAME.csv stands for NAME_train*.csv and NAME_test*.csv too)"
        )
    hint = "; or give the path of an .npz, .csv or .parquet file, or of a folder with train and test tables"
    raise BadExperiment(unknown("data", name, DATASETS) + hint)


def _digits() -> Dataset:
    """Load scikit-learn's digits; a fixed fifth of each class is for testing."""
    rows = _digits_rows()
    x = (rows[:, :-1] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    y = rows[:, -1].astype(np.int64)
    test = held_out(y)
    return Dataset("digits", x[~test], y[~test], x[test], y[test], None, None, classes=10, vocabulary=0)


def _digits_rows() -> NDArray[np.float64]:
    """Read 64 pixels and the label of each digit from the file, since importing scikit-learn takes two seconds."""
    spec = find_spec("sklearn")
    for place in [] if spec is None else spec.submodule_search_locations or []:
        if (file := Path(place) / "datasets" / "data" / "digits.csv.gz").is_file():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits  # for versions with the file elsewhere

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])


def _named(name: str, folder: Path, settings: Mapping[str, Any]) -> Dataset:
    """Load a named dataset from its files, which are downloaded first if they are missing."""
    named = NAMED[name]
    _allow(name, settings, () if named.rows else TEXT_SETTINGS)
    found = _find(name, folder)
    if found is None:
        fetch(name, folder)
        found = _find(name, folder)
        assert found is not None, f"{name} was fetched but is not in {folder}"
    if not named.rows:
        return _texts(name, *found, settings, named.classes)
    path = found[0][0]
    data = from_arrays(name, read_arrays(path), str(path), named.classes, named.scale)
    if data.x_train.shape[1:] != named.rows:
        raise BadData(f"{path}: array x_train has rows of shape {data.x_train.shape[1:]}; expected {named.rows}")
    return data


def _find(name: str, folder: Path) -> tuple[list[Path], list[Path]] | None:
    """A named set's files in the folder: its .npz, or its training and test tables; '-' may be '_'."""
    for stem in (name, name.replace("-", "_")):
        if NAMED[name].rows:
            if (path := folder / f"{stem}.npz").is_file():
                return [path], []
            continue
        for suffix in TABLES:
            train, test = pair(folder / f"{stem}{suffix}")
            if train:
                return train, test
    return None


def _texts(
    name: str, train: list[Path], test: list[Path], settings: Mapping[str, Any], classes: int | None = None
) -> Dataset:
    """Load texts as tokens; without a test table, a fixed fifth of each class is for testing."""
    rows = read_tables(train)
    if test:
        rows_test = read_tables(test)
    else:
        classes = int(rows.label.max()) + 1
        chosen = held_out(rows.label)
        rows, rows_test = rows.take(np.flatnonzero(~chosen)), rows.take(np.flatnonzero(chosen))
    x_train, x_test, vocabulary = encode(rows.text, rows_test.text, **settings)
    client_train, client_test = client_codes(rows.client, rows_test.client)
    arrays = {"x_train": x_train, "y_train": rows.label, "x_test": x_test, "y_test": rows_test.label}
    clients = {"client_train": client_train, "client_test": client_test}
    arrays |= {key: ids for key, ids in clients.items() if ids is not None}
    file = " + ".join(str(path) for path in (*train, *test))
    return from_arrays(name, arrays, file, classes)._replace(vocabulary=vocabulary)
