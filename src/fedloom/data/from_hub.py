"""`from_hub`: datasets of Hugging Face's library `datasets`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.data.dataset import Dataset
from fedloom.data.prepare import Part, assembled, halved
from fedloom.data.text import encode
from fedloom.errors import BadData

INPUTS = ("text", "sentence", "content", "image", "img")  # usual names of inputs
TARGETS = ("label", "labels", "target", "y", "fine_label", "coarse_label")


def from_hub(
    data: Any,
    x: str | Sequence[str] | None = None,
    y: str | None = None,
    *,
    client: str | None = None,
    stratum: str | None = None,
    tokenizer: Any = None,
    length: int = 128,
    vocabulary_size: int = 20_000,
) -> Dataset:
    """A `datasets.Dataset`, or a DatasetDict with `train` and `test`, as arrays.

    Args:
        data: the examples; without a set `test` a fixed fifth of every class is for testing.
        x: the column of inputs (texts, images, or lists of numbers), or several columns of numbers.
        y: the column of targets; names of classes are kept. Goal 'next-token' needs none.
        client: the column of clients, numbers or names.
        stratum: the column that partitions deal by, where targets are no classes.
        tokenizer: of Hugging Face, or a function from a text to token ids, 0 for padding; words are numbered by how
            often they occur if left out.
        length: tokens of a text, at most.
        vocabulary_size: words that are numbered, where there is no tokenizer.
    """
    sets = data if isinstance(data, Mapping) else {"train": data}
    if "train" not in sets:
        raise BadData(
            f"the DatasetDict has {', '.join(sets) or 'no sets'}; expected 'train', and 'test' if there is one."
        )
    columns = list(sets["train"].column_names)
    inputs = [x] if isinstance(x, str) else list(x or [_usual(columns, INPUTS, "x")])
    target = y or next((name for name in TARGETS if name in columns), None)
    names = [*inputs, *(name for name in (target, client, stratum) if name is not None)]
    for part, own in sets.items():
        for name in names:
            if part in ("train", "test") and name not in own.column_names:
                raise BadData(f"column {name} is missing in '{part}'; found {', '.join(own.column_names)}")

    def part_of(own: Any) -> Part:
        single = [_column([_value(one) for one in own[name]]) for name in inputs]
        chosen = (None if name is None else np.asarray(list(own[name])) for name in (target, client, stratum))
        return Part(single[0] if len(single) == 1 else np.stack(single, 1), *chosen)

    train = part_of(sets["train"])
    train, test = (train, part_of(sets["test"])) if "test" in sets else halved(train)
    vocabulary = 0
    if train.x.dtype.kind == "O":
        rows, rows_test, vocabulary = _tokens(train.x.tolist(), test.x.tolist(), tokenizer, length, vocabulary_size)
        train, test = train._replace(x=rows), test._replace(x=rows_test)
    made = assembled("hub", train, test)
    classes = getattr(sets["train"].features.get(target), "names", None) if target is not None else None
    if classes is not None:
        made = made._replace(class_names=tuple(classes), classes=len(classes))
    return made._replace(vocabulary=vocabulary or made.vocabulary)


def is_hub(thing: Any) -> bool:
    """Whether this is a dataset of Hugging Face's library, or a dictionary of some."""
    if isinstance(thing, Mapping):
        return bool(thing) and all(is_hub(one) for one in thing.values())
    return type(thing).__module__.partition(".")[0] == "datasets" and hasattr(thing, "column_names")


def _usual(columns: Sequence[str], names: Sequence[str], what: str) -> str:
    """A column by its usual name."""
    for name in names:
        if name in columns:
            return name
    raise BadData(f"which column holds the inputs? Say {what}=NAME; found {', '.join(columns)}")


def _column(values: list[Any]) -> NDArray[Any]:
    """Values as an array; texts as objects."""
    return np.asarray(values, object if values and isinstance(values[0], str) else None)


def _value(one: Any) -> Any:
    """A text or numbers; an image becomes its pixels."""
    return one if isinstance(one, str | int | float) else np.asarray(one)


def _tokens(
    train: list[str], test: list[str], tokenizer: Any, length: int, vocabulary_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Token ids of both sets [n, length], and how many there can be."""
    if tokenizer is None:
        return encode(train, test, vocabulary_size, length)
    rows, rows_test = (_encoded(texts, tokenizer, length) for texts in (train, test))
    seen = int(max(rows.max(), rows_test.max())) + 1
    try:
        return rows, rows_test, max(seen, len(tokenizer))
    except TypeError:  # a plain function
        return rows, rows_test, seen


def _encoded(texts: list[str], tokenizer: Callable[..., Any], length: int) -> NDArray[np.int64]:
    """Token ids [n, length], cut or padded with 0."""
    rows = np.zeros((len(texts), length), np.int64)
    whole = getattr(tokenizer, "pad_token_id", None) is not None or hasattr(tokenizer, "model_max_length")
    listed = (
        tokenizer(texts, truncation=True, max_length=length)["input_ids"]
        if whole
        else [tokenizer(one) for one in texts]
    )
    for row, ids in zip(rows, listed):
        own = ids[:length]
        row[: len(own)] = own
    return rows
