"""Tables of .csv and .parquet files as Arrow tables; counts in a file are checked before rows are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedloom.errors import BadData
from fedloom.reading.cap import check_room, reason

if TYPE_CHECKING:
    import pyarrow as pa

COLUMN = 12_000  # bytes that the reader of CSV takes for each column, whatever is in it
LINE = 2**20  # bytes of a table's first line at most
OBJECT = 100  # bytes of a Python object for a cell that is no number
WIDTHS = {"BOOLEAN": 1, "INT32": 8, "FLOAT": 8, "INT64": 8, "DOUBLE": 8}  # bytes of a number
POINTER = 12  # bytes of a cell that refers to a text, read once


def read_csv(path: Path, texts: bool = False) -> pa.Table:
    """The table of a .csv file; `texts`: cells stay texts, empty ones are null, else a column `text` alone does."""
    import pyarrow as pa  # here, since it is slow to import and most data are arrays
    import pyarrow.csv

    try:
        with path.open("rb") as opened:
            columns = 1 + opened.readline(LINE).count(b",")
        check_room(path, path.stat().st_size + columns * COLUMN)
        if texts:
            names = pa.csv.open_csv(path).schema.names
            kinds = dict.fromkeys(names, pa.string())
            options = pa.csv.ConvertOptions(column_types=kinds, strings_can_be_null=True, null_values=[""])
            table = pa.csv.read_csv(path, convert_options=options)
        else:
            options = pa.csv.ConvertOptions(column_types={"text": pa.string()})
            multiline = pa.csv.ParseOptions(newlines_in_values=True)
            table = pa.csv.read_csv(path, parse_options=multiline, convert_options=options)
        objects = sum(not _is_number(kind) for kind in table.schema.types) * table.num_rows
        check_room(path, table.nbytes + objects * OBJECT)
        return table
    except BadData:
        raise
    except Exception as error:  # what damaged tables raise is not documented
        raise BadData(f"{path} cannot be read as a table ({reason(error)})") from error


def read_parquet(path: Path, lists: bool = False) -> pa.Table:
    """The table of a .parquet file; columns of texts are dictionaries, so that a repeated text is there once.

    `lists`: also columns with several values in a cell, such as a run's own, whose number no file says beforehand.
    """
    import pyarrow as pa
    import pyarrow.parquet

    try:
        with pa.parquet.ParquetFile(path) as file:
            columns = [file.schema.column(place) for place in range(file.metadata.num_columns)]
            needed = _claimed(file.metadata, columns)
        nested = [one.path for one in columns if not _is_flat(one)]
        if nested and not lists:
            raise BadData(
                f"{path}: column {nested[0].partition('.')[0]} holds several values in a cell; expected a number or a "
                "text; write the table without it"
            )
        check_room(path, needed)
        texts = [one.path for one in columns if one.physical_type == "BYTE_ARRAY" and _is_flat(one)]
        with pa.parquet.ParquetFile(path, read_dictionary=texts) as file:
            table = file.read()
        table.validate(full=True)  # texts that are none, offsets that lead nowhere
        return table
    except BadData:
        raise
    except Exception as error:  # as above
        raise BadData(f"{path} cannot be read as a table ({reason(error)})") from error


def read_table(path: Path, texts: bool = False) -> pa.Table:
    """The table of a .csv or .parquet file."""
    return read_parquet(path) if path.suffix == ".parquet" else read_csv(path, texts)


def numbers_or_objects(column: pa.ChunkedArray) -> NDArray[Any]:
    """A column as numbers, empty cells as NaN; as objects, empty cells as None, where it holds anything else."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):  # rows share the texts
        parts = [np.empty(0, object)]
        for chunk in column.chunks:
            known = np.array([*chunk.dictionary.to_pylist(), None], object)
            parts.append(known[chunk.indices.fill_null(len(known) - 1).to_numpy(zero_copy_only=False)])
        return np.concatenate(parts)
    if _is_number(column.type):
        values: NDArray[Any] = column.to_numpy()
        if values.dtype.kind in "fiub":
            return values
    return np.array([*column.to_pylist(), None], object)[:-1]


def _is_number(kind: pa.DataType) -> bool:
    """Whether a column's cells need no Python objects."""
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_flat(column: Any) -> bool:
    """Whether a column has a value in a cell, or none."""
    return not column.max_repetition_level and column.max_definition_level <= 1


def _claimed(about: Any, columns: list[Any]) -> int:
    """Bytes of memory that a table takes by its metadata, without what its lists have.

    The metadata of a column's chunks are not asked: damaged ones end the process in pyarrow 26.
    """
    packed = sum(about.row_group(place).total_byte_size for place in range(about.num_row_groups))
    return int(about.serialized_size + 2 * packed + about.num_rows * sum(map(_cell, columns)))


def _cell(column: Any) -> int:
    """Bytes of memory that a cell of a column takes."""
    if column.physical_type == "BYTE_ARRAY":
        return POINTER
    if column.physical_type in WIDTHS and column.logical_type.type in ("NONE", "INT"):
        return WIDTHS[column.physical_type]
    return int(column.length) + OBJECT
