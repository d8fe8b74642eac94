"""Tables of rounds and clients as Parquet; a separate module, so that runs without a folder need not load pyarrow."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedloom.core.types import State
from fedloom.runs.ledger import TRANSPORT

ROUNDS = pa.schema(
    [("round", pa.int64())]
    + [(name, pa.float64()) for name in ("accuracy", "top5", "loss")]
    + [("per_class", pa.list_(pa.float64()))]
    + [(name, pa.float64()) for name in ("personal_accuracy", "training_loss")]
    + [(name, pa.int64()) for name in ("clients", "arrived", "rejected", "examples_trained", "bytes_down", "bytes_up")]
    + [(name, pa.float64()) for name in ("virtual_seconds", "joules", "wall_seconds", "evaluation_seconds")]
)


def table_bytes(rows: list[dict[str, Any]]) -> bytes:
    """The rows of all rounds as the bytes of a Parquet file."""
    added = dict.fromkeys(
        name for row in rows for name in row if name not in ROUNDS.names
    )  # columns of the method's parts
    kinds = [(name, pa.int64() if name in TRANSPORT else pa.float64()) for name in added]
    return _bytes(pa.Table.from_pylist(rows, pa.schema([*ROUNDS, *kinds])))


def table_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of such a file; columns that were not recorded in a round are not in its row."""
    rows = pq.ParquetFile(file).read().to_pylist()
    return [{k: v for k, v in row.items() if v is not None or k in ROUNDS.names} for row in rows]


def column_bytes(columns: State) -> bytes:
    """Columns on the host as the bytes of a Parquet file."""
    return _bytes(pa.table({name: value.numpy() for name, value in columns.items()}))


def _bytes(table: pa.Table) -> bytes:
    """The table as a Parquet file."""
    pq.write_table(table, file := BytesIO())
    return file.getvalue()
