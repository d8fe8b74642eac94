"""Readers of arrays (.npz) and tables of texts (.csv, .parquet); errors name file, array or column, and row."""

import glob
import lzma
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

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


class Table(NamedTuple):
    """Texts, their labels and, if known, their clients."""

    text: list[str]
    label: Ints
    client: list[str] | None

    def take(self, rows: Ints) -> "Table":
        """Some of the rows, in the order given."""
        client = None if self.client is None else [self.client[row] for row in rows]
        return Table([self.text[row] for row in rows], self.label[rows], client)


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


def read_tables(paths: Sequence[Path]) -> Table:
    """Read tables and join them in the order given."""
    tables = [_read_table(path) for path in paths]
    texts = [text for table in tables for text in table.text]
    labels = np.concatenate([table.label for table in tables])
    clients = [table.client for table in tables]
    if all(client is None for client in clients):
        return Table(texts, labels, None)
    for path, client in zip(paths, clients):
        if client is None:
            raise BadData(f"{path}: column client is missing; the other tables have one")
    return Table(texts, labels, [one for client in clients for one in client or ()])


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


def _read_table(path: Path) -> Table:
    """Read one table with columns text, label and optionally client."""
    import pyarrow as pa  # here, since it is slow to import and most data are arrays
    import pyarrow.csv
    import pyarrow.parquet

    try:
        if path.suffix == ".csv":
            columns = pa.csv.ConvertOptions(column_types=dict.fromkeys(("text", "label", "client"), pa.string()))
            multiline = pa.csv.ParseOptions(newlines_in_values=True)
            table = pa.csv.read_csv(path, parse_options=multiline, convert_options=columns)
        else:
            with pa.parquet.ParquetFile(path) as file:
                table = file.read()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadData(f"{path} cannot be read as a table ({str(error).splitlines()[0]})") from error
    found: dict[str, list[Any]] = {name: table.column(name).to_pylist() for name in dict.fromkeys(table.column_names)}
    for column in ("text", "label"):
        if column not in found:
            raise BadData(f"{path}: column {column} is missing; expected text and label, found {', '.join(found)}")
    if not found["text"]:
        raise BadData(f"{path}: the table has no rows")
    for row, text in enumerate(found["text"]):
        if not isinstance(text, str):
            raise BadData(f"{path}: column text, row {row} holds {text!r}; expected a text")
    labels = np.array([_label(value, path, row) for row, value in enumerate(found["label"])], np.int64)
    client = found.get("client")
    if client is not None and None in client:
        raise BadData(f"{path}: column client, row {client.index(None)} is empty; expected the client of the example")
    return Table(found["text"], labels, None if client is None else [str(one) for one in client])


def _label(value: object, path: Path, row: int) -> int:
    """A label as an int; anything but a whole number from 0 is refused."""
    try:
        label = int(value) if isinstance(value, str) else value
        if isinstance(label, int | float) and label == int(label) and 0 <= label < 2**31:
            return int(label)
    except (ValueError, OverflowError):
        pass
    raise BadData(f"{path}: column label, row {row} holds {value!r}; expected a whole number, classes count from 0")
