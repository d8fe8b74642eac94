"""`load`, which reads a dataset by name or path."""

import os
from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from fedloom.accel.machine import cache_folder
from fedloom.core.goal import Goal
from fedloom.data.dataset import NEEDED, Dataset
from fedloom.data.digits import digits
from fedloom.data.files import TABLES, find_tables, pair, read_arrays, read_columns, read_mapped
from fedloom.data.from_columns import from_columns
from fedloom.data.from_images import from_images, has_images
from fedloom.data.hub import fetch
from fedloom.data.named import NAMED
from fedloom.data.prepare import from_arrays
from fedloom.data.synthetic import synthetic
from fedloom.data.targets import for_goal
from fedloom.data.text import encode
from fedloom.errors import BadData, BadExperiment, unknown
from fedloom.goals import GOALS

MADE: dict[str, Callable[..., Dataset]] = {"digits": digits, "synthetic": synthetic}  # need no file
DATASETS = {
    "digits": "handwritten digits, 1,797 grey images of 8x8, 10 classes; comes with scikit-learn, needs no file",
    "synthetic": "invented data of unlike clients (Synthetic(alpha, beta) of FedProx), 10 classes, own clients",
    **{name: named.about for name, named in NAMED.items()},
}
TEXT_SETTINGS = ("vocabulary_size", "length")


def load(name: str, /, folder: Path | None = None, goal: Goal | str | None = None, **settings: Any) -> Dataset:
    """Load a dataset by its name in `DATASETS`, or by the path of a file or a folder.

    Paths are an .npz, a .csv or .parquet, and folders of tables, of arrays (.npy), which stay on disk, or of pictures.
    Named datasets are read from `folder`, else from FEDLOOM_DATA, else from fedloom's cache folder. Targets are checked
    for `goal`, one class per example if left out. `settings_of` lists the settings of a name or path.
    """
    if not isinstance(folder, str | Path | None):
        raise BadExperiment(f"folder of data '{name}' is {folder!r}; expected a path.")
    folder, goal = data_folder() if folder is None else Path(folder), _goal(goal)
    if name in MADE:
        _allow(name, settings, tuple(signature(MADE[name]).parameters))
        return for_goal(MADE[name](**settings), goal, f"data '{name}'")
    if name in NAMED:
        return _named(name, folder, goal, settings)
    path = _path(name, folder)
    _allow(name, settings, tuple(_settings_of_path(path)))
    if path.suffix == ".npz":
        return from_arrays(path.stem, read_arrays(path), str(path), goal=goal)
    if path.is_dir() and _is_mapped(path):
        return from_arrays(path.name, read_mapped(path), str(path), goal=goal)
    if path.is_dir() and has_images(path):
        return for_goal(from_images(path, **settings), goal, str(path))
    return _tables(path.stem, *find_tables(path), goal, settings)


def is_path(name: str) -> bool:
    """Whether this stands for a file or a folder, and not for one of `DATASETS`."""
    ends = (".npz", *TABLES)
    return name not in DATASETS and (name.endswith(ends) or "/" in name or Path(name).is_dir())


def settings_of(name: str) -> dict[str, Any]:
    """A dataset's settings and their defaults."""
    if name in MADE:
        return {p.name: p.default for p in signature(MADE[name]).parameters.values()}
    if name in NAMED:
        return {} if NAMED[name].rows else _defaults(encode, TEXT_SETTINGS)
    return _settings_of_path(Path(name).expanduser())


def _settings_of_path(path: Path) -> dict[str, Any]:
    """The settings of a file's or a folder's kind, and their defaults."""
    if path.suffix == ".npz" or (path.is_dir() and _is_mapped(path)):
        return {}
    if path.is_dir() and has_images(path):
        return _defaults(from_images, ("size", "client"))
    return _defaults(from_columns, ("x", "y", "client", "stratum", "standardise")) | _defaults(encode, TEXT_SETTINGS)


def _defaults(function: Callable[..., Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Some of a function's arguments and their defaults."""
    return {name: signature(function).parameters[name].default for name in names}


def _is_mapped(path: Path) -> bool:
    """Whether a folder holds arrays, each in a file of its own."""
    return (path / "x_train.npy").is_file()


def _goal(goal: Goal | str | None) -> Goal:
    """A goal by name or as it is."""
    if isinstance(goal, str):
        if goal not in GOALS:
            raise BadExperiment(unknown("goal", goal, GOALS))
        return GOALS[goal]()
    return goal or GOALS["classes"]()


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
            "with columns text and label, or of numbers (NAME.csv stands for NAME_train*.csv and NAME_test*.csv too)"
        )
    hint = "; or give the path of an .npz, .csv or .parquet file, or of a folder of tables, arrays (.npy) or pictures"
    raise BadExperiment(unknown("data", name, DATASETS) + hint)


def _named(name: str, folder: Path, goal: Goal, settings: Mapping[str, Any]) -> Dataset:
    """Load a named dataset from its files, which are downloaded first if they are missing."""
    named = NAMED[name]
    _allow(name, settings, () if named.rows else TEXT_SETTINGS)
    found = _find(name, folder)
    if found is None:
        fetch(name, folder)
        found = _find(name, folder)
        assert found is not None, f"{name} was fetched but is not in {folder}"
    if not named.rows:
        return _tables(name, *found, goal, settings, named.classes)
    path = found[0][0]
    data = from_arrays(name, read_arrays(path), str(path), named.classes, named.scale, goal)
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


def _tables(
    name: str, train: list[Path], test: list[Path], goal: Goal, settings: Mapping[str, Any], classes: int = 0
) -> Dataset:
    """Load tables; without a test table, a fixed fifth of each class is for testing."""
    file = " + ".join(str(path) for path in (*train, *test))
    tested = read_columns(test) if test else None
    data = from_columns(name, read_columns(train), tested, file, goal=goal, **settings)
    return for_goal(data._replace(classes=classes or data.classes), goal, file)
