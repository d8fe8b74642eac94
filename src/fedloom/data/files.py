"""Readers of arrays (.npz, .npy) and tables (.csv, .parquet); errors name file, array or column, and row."""

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.data.dataset import NEEDED, OPTIONAL
from fedloom.data.sampling import Ints
from fedloom.errors import BadData
from fedloom.reading.arrays import map_array, read_npz
from fedloom.reading.tables import numbers_or_objects, read_table

TABLES = (".csv", ".parquet")


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of an .npz file that a dataset uses."""
    return read_npz(path, (*NEEDED, *OPTIONAL))


def read_mapped(folder: Path) -> dict[str, NDArray[Any]]:
    """The arrays `x_train.npy` and so on of a folder; they stay on disk, mapped into memory."""
    files = {name: folder / f"{name}.npy" for name in (*NEEDED, *OPTIONAL)}
    return {name: map_array(file) for name, file in files.items() if file.is_file()}


def read_columns(paths: Sequence[Path]) -> dict[str, NDArray[Any]]:
    """Read tables and join them in the order given: numbers, or objects where a column holds anything else."""
    tables = [_read_table(path) for path in paths]
    names = dict.fromkeys(name for table in tables for name in table)
    for path, table in zip(paths, tables):
        for name in names:
            if name not in table:
                raise BadData(f"{path}: column {name} is missing; the other tables have one")
    return {name: _concatenated([table[name] for table in tables]) for name in names}


def _concatenated(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Parts of a column; numbers become texts where another part holds texts."""
    if {part.dtype.kind == "O" for part in parts} == {True, False}:
        parts = [part if part.dtype.kind == "O" else np.array([str(one) for one in part], object) for part in parts]
    return np.concatenate(parts)


def find_tables(path: Path) -> tuple[list[Path], list[Path]]:
    """Find the training and the test tables of a path; without test tables, part of the training table is for testing.

    A folder gives its *train* and *test* tables. NAME.csv gives itself, or NAME_train*.csv with NAME_test*.csv;
    NAME_train*.csv gives the NAME_test*.csv of its folder, too.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in TABLES)
        train = [file for file in files if "train" in file.stem]
        test = [file for file in files if "test" in file.stem and "train" not in file.stem]
        if not train or not test:
            raise BadData(f"{path}: expected tables *train*.csv and *test*.csv (or .parquet), found {_names(files)}")
        return train, test
    if path.is_file():
        before, train_word, _ = path.stem.rpartition("train")
        return [path], matching(path.parent, before + "test", path.suffix) if train_word else []
    return pair(path)


def pair(path: Path) -> tuple[list[Path], list[Path]]:
    """NAME_train*.csv and NAME_test*.csv for NAME.csv, likewise .parquet; both lists are empty unless both exist."""
    train, test = (matching(path.parent, f"{path.stem}_{part}", path.suffix) for part in ("train", "test"))
    return (train, test) if train and test else ([], [])


def matching(folder: Path, start: str, suffix: str) -> list[Path]:
    """The folder's files whose names begin with `start` and end with `suffix`."""
    return sorted(folder.glob(f"{glob.escape(start)}*{suffix}"))


def client_codes(train: list[str] | None, test: list[str] | None) -> tuple[Ints | None, Ints | None]:
    """Client ids as integers: as they are if all are integers, else their ranks in sorted order."""
    names = {*(train or ()), *(test or ())}
    try:
        code = {name: int(name) for name in names}
    except ValueError:
        code = {name: place for place, name in enumerate(sorted(names))}

    def numbers(ids: list[str] | None) -> Ints | None:
        return None if ids is None else np.array([code[one] for one in ids], np.int64)

    return numbers(train), numbers(test)


def _names(files: Sequence[Path]) -> str:
    """File names for an error message."""
    return ", ".join(file.name for file in files) or "none"


def _read_table(path: Path) -> dict[str, NDArray[Any]]:
    """The columns of one table."""
    table = read_table(path)
    if not table.num_rows:
        raise BadData(f"{path}: the table has no rows")
    return {name: numbers_or_objects(table.column(name)) for name in dict.fromkeys(table.column_names)}
