"""Reading users' tables of numbers (.csv, .parquet), with errors that name file, column and row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core.devices import RANGES, allowed, expected
from fedloom.errors import BadData, unknown
from fedloom.reading.tables import numbers_or_objects, read_table

TABLES = (".csv", ".parquet")


def read_devices(path: Path, total: int) -> dict[str, Tensor]:
    """Read a table of devices, with one row for each of the clients 0 to `total` - 1, in any order."""
    columns = read_numbers(path, ("client",), tuple(RANGES))
    client = clients_in(path, columns.pop("client"), total)
    order = client.argsort(stable=True)
    again = client[order][1:] == client[order][:-1]
    refuse(path, "client", client, unique(order, again), "every client once; this is its second row")
    if len(client) < total:
        missing = sorted(set(range(total)) - set(client.tolist()))
        raise BadData(f"{path}: column client lacks client {missing[0]}; expected a row for each of 0 to {total - 1}")
    for name, values in columns.items():
        refuse(path, name, values, allowed(name, values), expected(name))
    return {name: values[order] for name, values in columns.items()}


def unique(order: Tensor, again: Tensor) -> Tensor:
    """Which rows are no repeats; `again` marks repeats among all rows in sorted `order` but the first."""
    return torch.ones_like(order, dtype=torch.bool).index_fill(0, order[1:][again], False)


def clients_in(path: Path, values: Tensor, total: int) -> Tensor:
    """A client column as int64; values that are no clients of the fleet are refused."""
    known = (values >= 0) & (values < total) & (values == values.floor())
    refuse(path, "client", values, known, f"a client of the fleet, 0 to {total - 1}")
    return values.long()


def refuse(path: Path, column: str, values: Tensor, good: Tensor, wanted: str) -> None:
    """Raise `BadData` with the first row, counted from 0 below the header, whose value is not good."""
    if not bool(good.all()):
        row = int((~good).byte().argmax())
        raise BadData(f"{path}: column {column}, row {row} is {values[row].item():g}; expected {wanted}")


def read_numbers(path: Path, needed: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, Tensor]:
    """Read a table's columns in double precision; other columns, empty cells, texts and NaN are refused."""
    table = read_table(path, texts=True)
    names = list(table.column_names)
    for name in names:
        if name not in (*needed, *optional):
            raise BadData(f"{path}: {unknown('column', name, (*needed, *optional))}")
        if names.count(name) > 1:
            raise BadData(f"{path}: column {name} occurs {names.count(name)} times; expected once")
    for name in needed:
        if name not in names:
            raise BadData(f"{path}: column {name} is missing; found {', '.join(names) or 'none'}")
    if not table.num_rows:
        raise BadData(f"{path}: the table has no rows")
    return {name: _numbers(path, name, table.column(name)) for name in names}


def _numbers(path: Path, name: str, column: Any) -> Tensor:
    """Convert a column to numbers [rows]."""
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise BadData(f"{path}: column {name}, row {row} is empty; expected a number")
    cells = numbers_or_objects(column)
    if cells.dtype.kind == "O":
        cells = np.array([_number(path, name, row, cell) for row, cell in enumerate(cells.tolist())])
    values = torch.from_numpy(cells.astype(np.float64))
    refuse(path, name, values, values.isfinite(), "a finite number")
    return values


def _number(path: Path, name: str, row: int, cell: Any) -> float:
    """Convert a cell to a number."""
    try:
        return float(cell)
    except (TypeError, ValueError):
        raise BadData(f"{path}: column {name}, row {row} holds {cell!r}; expected a number") from None
