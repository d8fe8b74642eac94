"""Tables of rounds and clients as Parquet; a separate module, so that runs without a folder need not load pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedloom.core.costs import TRANSPORT
from fedloom.core.types import State
from fedloom.reading.tables import read_parquet

COUNTS = ("round", "clients", "arrived", "rejected", "examples_trained", "bytes_down", "bytes_up", *TRANSPORT)


def table_bytes(rows: list[dict[str, Any]], names: Sequence[str] = ()) -> bytes:
    """The rows of all rounds as the bytes of a Parquet file; `names` are columns also of no rows."""
    return _bytes(pa.Table.from_pylist(rows, pa.schema(columns_of(rows, names))))


def columns_of(rows: list[dict[str, Any]], names: Sequence[str] = ()) -> list[tuple[str, pa.DataType]]:
    """The columns of rows of rounds, with their types: `names` first, then others that occur."""
    lists = {name for row in rows for name, value in row.items() if isinstance(value, list)} | {"per_class"}
    every = dict.fromkeys([*names, *(name for row in rows for name in row)])
    kinds = {name: pa.list_(pa.float64()) if name in lists else pa.float64() for name in every}
    return [(name, pa.int64() if name in COUNTS else kind) for name, kind in kinds.items()]


def table_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of such a file; what a method's part (its columns have a dot) did not record is not in a row."""
    rows = read_parquet(file, lists=True).to_pylist()
    return [{k: v for k, v in row.items() if v is not None or not ("." in k or k in TRANSPORT)} for row in rows]


def column_bytes(columns: State, names: Sequence[str] = ()) -> bytes:
    """Columns on the host as the bytes of a Parquet file; `names` of clients become a column next to their numbers."""
    table = pa.table({name: value.numpy() for name, value in columns.items()})
    if names and "client" in columns:
        texts = pa.array(names).take(pa.array(columns["client"].numpy()))
        table = table.add_column(table.column_names.index("client") + 1, "name", texts)
    return _bytes(table)


def _bytes(table: pa.Table) -> bytes:
    """The table as a Parquet file."""
    pq.write_table(table, file := BytesIO())
    return file.getvalue()
