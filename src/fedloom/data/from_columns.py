"""`from_frame`, and tables with chosen columns: numbers or one column of texts as inputs, other columns as targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedloom.core.goal import Goal
from fedloom.data.dataset import Dataset
from fedloom.data.prepare import Part, assembled, halved
from fedloom.data.targets import check_targets
from fedloom.data.text import encode
from fedloom.errors import BadData, BadExperiment, unknown
from fedloom.reading.cap import check_room

Columns = Mapping[str, NDArray[Any]]  # numbers, or texts as objects
Standardise = Literal["inputs", "all", "none"]
TARGETS = ("label", "target", "y")  # names by which a target is found


def from_frame(
    frame: Any,
    y: str | Sequence[str] | None = None,
    x: str | Sequence[str] | None = None,
    *,
    test: Any = None,
    client: str | None = None,
    stratum: str | None = None,
    standardise: Standardise = "inputs",
) -> Dataset:
    """A dataset of a pandas DataFrame, or of any mapping from column names to values.

    Args:
        frame: the table of training examples.
        y: the column of targets, or several; a column 'label', 'target' or 'y' if left out.
        x: the columns of inputs, or one column of texts; all columns of numbers that are nothing else if left out.
        test: a table of test examples; without one a fixed fifth of every class is for testing.
        client: the column of clients, numbers or names; a column 'client' if left out.
        stratum: the column that partitions deal by, where targets are no classes; a column 'stratum' if left out.
        standardise: bring to mean 0 and deviation 1, by the training examples: 'inputs', 'all' (targets too) or 'none'.
    """
    return from_columns(
        "table", columns_of(frame), None if test is None else columns_of(test), "data 'table'",
        x=x, y=y, client=client, stratum=stratum, standardise=standardise,
    )  # fmt: skip


def columns_of(frame: Any) -> dict[str, NDArray[Any]]:
    """The columns of a pandas DataFrame or of a mapping."""
    return {str(name): _values(frame[name]) for name in frame}


def from_columns(
    name: str,
    train: Columns,
    test: Columns | None,
    file: str,
    *,
    x: str | Sequence[str] | None = None,
    y: str | Sequence[str] | None = None,
    client: str | None = None,
    stratum: str | None = None,
    standardise: Standardise = "inputs",
    goal: Goal | None = None,
    **words: Any,
) -> Dataset:
    """A dataset of the columns of one table or two; `words` are settings of texts: `vocabulary_size` and `length`.

    With a goal, targets are checked here, where rows are still those of the table.
    """
    if standardise not in get_args(Standardise):
        raise BadExperiment(unknown("standardise", str(standardise), get_args(Standardise)))
    targets = _listed(y) or _found_target(train, file)
    special = {"client": client, "stratum": stratum}
    special = {kind: own or (kind if kind in train else None) for kind, own in special.items()}
    _check_columns(train, [*targets, *_listed(x), *(own for own in special.values() if own)], file)
    inputs = _listed(x) or _inputs(train, [*targets, *(own for own in special.values() if own)], file)
    used = [*inputs, *targets, *(own for own in special.values() if own)]
    parts = []
    for table in (train, test):
        if table is not None:
            _check_columns(table, used, file)
            answers = _targets_of(table, targets, file)
            if goal is not None and goal.derive is None and answers.dtype.kind in "fiub":
                check_targets(f"{file}: column {targets[0]}", answers, goal)
            part = Part(
                _inputs_of(table, inputs, file), answers,
                *(None if own is None else _ids_of(table, own, file) for own in special.values()),
            )  # fmt: skip
            parts.append(part)
    train_part, test_part = parts if len(parts) == 2 else halved(parts[0])
    vocabulary = 0
    if train_part.x.dtype.kind == "O":
        rows, rows_test, vocabulary = encode(train_part.x.tolist(), test_part.x.tolist(), file=file, **words)
        train_part, test_part = train_part._replace(x=rows), test_part._replace(x=rows_test)
    elif words:
        raise BadExperiment(
            f"{next(iter(words))} is a setting of texts, and the columns {', '.join(inputs)} are numbers."
        )
    elif standardise != "none":
        train_part, test_part = _standardised(train_part, test_part, targets=standardise == "all")
    made = assembled(name, train_part, test_part, file)
    return made._replace(vocabulary=vocabulary) if vocabulary else made


def _values(column: Any) -> NDArray[Any]:
    """A column as numbers, or as objects where it holds anything else."""
    values = np.asarray(column)
    return values.astype(object) if values.dtype.kind not in "fiub" else values


def _listed(names: str | Sequence[str] | None) -> list[str]:
    """Column names as a list."""
    return [names] if isinstance(names, str) else [str(name) for name in names or ()]


def _found_target(table: Columns, file: str) -> list[str]:
    """The target by its usual name."""
    for name in TARGETS:
        if name in table:
            return [name]
    raise BadData(
        f"{file}: no column is named {', '.join(TARGETS[:-1])} or {TARGETS[-1]}; say which are targets, data.y=NAME "
        f"(data.x=[NAME,...] chooses inputs); found {', '.join(table) or 'none'}"
    )


def _inputs(table: Columns, others: Sequence[str], file: str) -> list[str]:
    """The columns of inputs where none were named: `text`, else all others, which must be numbers."""
    if "text" in table and "text" not in others:
        return ["text"]
    found = [name for name in table if name not in others]
    texts = [name for name in found if table[name].dtype.kind not in "fiub"]
    if found and not texts:
        return found
    why = f"column {texts[0]} holds texts" if texts else "no column of numbers is left"
    raise BadData(
        f"{file}: column text is missing, and {why}; choose inputs by data.x=[NAME,...]; found {', '.join(table)}"
    )


def _check_columns(table: Columns, names: Sequence[str], file: str) -> None:
    """Refuse tables without rows or without a column that is needed."""
    for name in names:
        if name not in table:
            raise BadData(f"{file}: column {name} is missing; found {', '.join(table)}")
    if not len(table[names[0]]):
        raise BadData(f"{file}: the table has no rows")


def _inputs_of(table: Columns, names: Sequence[str], file: str) -> NDArray[Any]:
    """Inputs: numbers [n, columns], or texts [n]."""
    if len(names) == 1 and table[names[0]].dtype.kind == "O":
        return _texts(table, names[0], file)
    for name in names:
        if table[name].dtype.kind not in "fiub":
            row, value = _first_text(table[name])
            raise BadData(
                f"{file}: column {name}, row {row} holds {value!r}; expected numbers, or one column of texts alone: "
                "choose the columns of inputs by data.x=[NAME,...]"
            )
        if table[name].dtype.kind == "f" and not np.isfinite(table[name]).all():
            row = int((~np.isfinite(table[name])).argmax())
            raise BadData(f"{file}: column {name}, row {row} is empty or not finite; expected a number")
    return np.stack([table[name].astype(np.float32) for name in names], 1)


def _texts(table: Columns, name: str, file: str) -> NDArray[Any]:
    """A column of texts, as objects: an array of texts has room for the longest in every row."""
    for row, text in enumerate(table[name].tolist()):
        if not isinstance(text, str):
            raise BadData(f"{file}: column {name}, row {row} holds {text!r}; expected a text")
    return table[name]


def _targets_of(table: Columns, names: Sequence[str], file: str) -> NDArray[Any]:
    """Targets: one column [n], of numbers or texts, or several of numbers [n, k]."""
    if len(names) == 1:
        return _ids_of(table, names[0], file)
    for name in names:
        if table[name].dtype.kind not in "fiub":
            row, value = _first_text(table[name])
            raise BadData(f"{file}: column {name}, row {row} holds {value!r}; several targets must be numbers")
    return np.stack([table[name] for name in names], 1)


def _ids_of(table: Columns, name: str, file: str) -> NDArray[Any]:
    """A column of numbers or of texts; empty cells are refused."""
    values = table[name]
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise BadData(f"{file}: column {name}, row {int(np.isnan(values).argmax())} is empty; expected a {name}")
    if values.dtype.kind != "O":
        return values
    listed = values.tolist()
    for row, value in enumerate(listed):
        if value is None or value != value or value == "":
            raise BadData(f"{file}: column {name}, row {row} is empty; expected a {name}")
    texts = [str(value) for value in listed]
    check_room(f"{file}: column {name}", 4 * len(texts) * max(map(len, texts)))  # every row has room for the longest
    return np.array(texts)


def _first_text(values: NDArray[Any]) -> tuple[int, Any]:
    """The first value of a column that is no number, and its row."""
    listed = values.tolist()
    return next(((row, one) for row, one in enumerate(listed) if not isinstance(one, int | float)), (0, listed[0]))


def _standardised(train: Part, test: Part, targets: bool) -> tuple[Part, Part]:
    """Both parts with mean 0 and deviation 1 in every column, measured on the training part."""
    for key in ("x", "y") if targets else ("x",):
        values = getattr(train, key)
        if values.dtype.kind not in "fiub":
            raise BadData("standardise is 'all', and the targets are texts; use 'inputs'.")
        mean, deviation = values.mean(0, dtype=np.float64), values.std(0, dtype=np.float64)
        deviation = np.where(deviation > 0, deviation, 1)
        train, test = (
            part._replace(**{key: ((getattr(part, key) - mean) / deviation).astype(np.float32)})
            for part in (train, test)
        )
    return train, test
