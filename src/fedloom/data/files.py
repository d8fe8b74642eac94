"""Readers of arrays (.npz, .npy) and tables (.csv, .parquet); errors name file, array or column, and row."""

import glob
import lzma
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.data.dataset import NEEDED, OPTIONAL
from fedloom.data.sampling import Ints
from fedloom.errors import BadData

TABLES = (".csv", ".parquet")
# exceptions from reading a damaged archive
DAMAGE = (
    *(OSError, ValueError, EOFError, MemoryError, NotImplementedError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of an .npz file that a dataset uses; nothing is unpickled."""
    arrays, name = {}, ""
    try:
        with path.open("rb") as handle:
            file = np.load(handle, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise BadData(f"{path}: expected an .npz archive of named arrays (np.savez), found a single array")
            for name in (*NEEDED, *OPTIONAL):
                if name in file:
                    arrays[name] = file[name]
    except BadData:
        raise
    except DAMAGE as error:
        where = f"{path}: array {name}" if name else f"{path}"
        if "allow_pickle" in str(error):
            raise BadData(f"{where} holds Python objects; expected numbers: save it with a number type") from error
        raise BadData(f"{where} cannot be read, the file is damaged or cut short ({error}); copy it again") from error
    return arrays


def read_mapped(folder: Path) -> dict[str, NDArray[Any]]:
    """The arrays `x_train.npy` and so on of a folder; they stay on disk, mapped into memory."""
    arrays = {}
    for name in (*NEEDED, *OPTIONAL):
        path = folder / f"{name}.npy"
        if path.is_file():
            try:
                arrays[name] = np.load(path, mmap_mode="c", allow_pickle=False)
            except DAMAGE as error:
                raise BadData(f"{path} cannot be read ({error}); expected an array of numbers (np.save)") from error
    return arrays


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
    import pyarrow as pa  # here, since it is slow to import and most data are arrays
    import pyarrow.csv
    import pyarrow.parquet

    try:
        if path.suffix == ".csv":
            columns = pa.csv.ConvertOptions(column_types={"text": pa.string()})
            multiline = pa.csv.ParseOptions(newlines_in_values=True)
            table = pa.csv.read_csv(path, parse_options=multiline, convert_options=columns)
        else:
            with pa.parquet.ParquetFile(path) as file:
                table = file.read()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadData(f"{path} cannot be read as a table ({str(error).splitlines()[0]})") from error
    if not table.num_rows:
        raise BadData(f"{path}: the table has no rows")
    return {name: _numbers_or_objects(table.column(name)) for name in dict.fromkeys(table.column_names)}


def _numbers_or_objects(column: Any) -> NDArray[Any]:
    """A column as numbers, empty cells as NaN; as objects where it holds anything else."""
    values = column.to_numpy()
    return values if values.dtype.kind in "fiub" else np.array([*column.to_pylist(), None], object)[:-1]
