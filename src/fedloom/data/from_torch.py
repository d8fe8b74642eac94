"""`from_torch` and `from_clients`: datasets of PyTorch, read once into arrays."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from fedloom.data.dataset import Dataset
from fedloom.data.prepare import Part, assembled, halved
from fedloom.errors import BadData
from fedloom.goals.places import IGNORED

Tell = Callable[[str], None]
PROGRESS_EVERY = 2.0  # seconds


def from_torch(
    train: Any,
    test: Any = None,
    *,
    client: Sequence[Any] | None = None,
    client_test: Sequence[Any] | None = None,
    stratum: Sequence[Any] | None = None,
    into: str | Path | None = None,
    tell: Tell | None = None,
) -> Dataset:
    """Read map-style torch Datasets, or the datasets of DataLoaders with their `collate_fn`, into arrays.

    Every example is read once, so a random transform in `__getitem__` is refused: give it as `run(transform=...)`.
    Samplers, batch sizes and workers of a loader have no effect.

    Args:
        train: the training examples, pairs of input and target.
        test: the test examples; without them a fixed fifth of every class is for testing.
        client: the client of each training example, a number or a name.
        client_test: the client of each test example.
        stratum: what partitions deal training examples by, where targets are no classes.
        into: a folder: inputs are written there and stay on disk, for data that exceed memory.
        tell: called with progress while examples are read.
    """
    name, folder = _name(train), None if into is None else Path(into)
    whole = Part(*read_pairs(train, "train", folder, tell), client, stratum)
    tested = None if test is None else Part(*read_pairs(test, "test", folder, tell), client_test)
    for what, given, count in (
        ("client", client, len(whole.x)), ("stratum", stratum, len(whole.x)),
        ("client_test", client_test, 0 if tested is None else len(tested.x)),
    ):  # fmt: skip
        if given is not None and len(given) != count:
            raise BadData(f"{what} has {len(given)} entries for {count} examples; expected one each.")
    return assembled(name, whole, tested)


def from_clients(train: Sequence[Any] | Mapping[str, Any], test: Any = None, *, tell: Tell | None = None) -> Dataset:
    """Clients' own data: a list with one entry per client, or a mapping from clients' names to entries.

    An entry is a pair of arrays `(x, y)` or a torch Dataset. `test` is a list or a mapping like `train`, one entry for
    all clients, or None: a fifth of every client's examples is for testing. The clients of a run are these, unless it
    names another partition than 'auto' or 'own'.
    """
    named = isinstance(train, Mapping)
    names = [str(name) for name in train] if isinstance(train, Mapping) else [str(at) for at in range(len(train))]
    entries = list(train.values()) if isinstance(train, Mapping) else list(train)
    if not entries:
        raise BadData("there are no clients; expected one entry per client, such as (x, y).")
    own = [Part(*pair_of(one, f"client {name}", tell)) for name, one in zip(names, entries)]
    if empty := [name for name, one in zip(names, own) if not len(one.x)]:
        raise BadData(f"client {empty[0]} has no examples; leave clients without examples out.")
    tests: list[Part]
    if test is None:
        own, tests = (list(part) for part in zip(*map(halved, own)))
    elif isinstance(test, Mapping) or (isinstance(test, Sequence) and not isinstance(test, tuple)):
        listed = [test[name] for name in train] if isinstance(test, Mapping) else list(test)
        if len(listed) != len(own):
            raise BadData(f"test has {len(listed)} entries for {len(own)} clients; expected one each, or one for all.")
        tests = [Part(*pair_of(one, f"test set of client {name}", tell)) for name, one in zip(names, listed)]
    else:
        tests = [Part(*pair_of(test, "test set", tell))]
    ids = list(range(len(own)))
    data = assembled("clients", _joined(own, ids), _joined(tests, ids if len(tests) == len(own) else None))
    return data._replace(divided=True, client_names=tuple(names) if named else None)


def pair_of(entry: Any, what: str, tell: Tell | None = None) -> tuple[Any, Any]:
    """Inputs and targets of an entry: a pair of arrays, a mapping with x and y, or a torch Dataset."""
    if isinstance(entry, Dataset):
        return entry.x_train, entry.y_train
    if isinstance(entry, Mapping) and {"x", "y"} <= set(entry):
        return entry["x"], entry["y"]
    if isinstance(entry, tuple | list) and len(entry) == 2:
        x, y = (np.asarray(one.detach().cpu() if isinstance(one, torch.Tensor) else one) for one in entry)
        if len(x) != len(y):
            raise BadData(f"{what}: {len(x)} inputs and {len(y)} targets; expected equal numbers.")
        return x, y
    if is_torch(entry):
        return read_pairs(entry, what, None, tell)
    raise BadData(f"{what} is of type {type(entry).__name__}; expected a pair of arrays (x, y) or a torch Dataset.")


def is_torch(thing: Any) -> bool:
    """Whether this is a dataset or a loader of PyTorch."""
    return isinstance(thing, torch.utils.data.Dataset | DataLoader)


def read_pairs(source: Any, part: str, into: Path | None, tell: Tell | None) -> tuple[Any, Any]:
    """Read all examples of a Dataset or a loader: inputs and targets."""
    data = source.dataset if isinstance(source, DataLoader) else source
    collate = source.collate_fn if isinstance(source, DataLoader) else default_collate
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise BadData(
            f"{type(data).__name__} has no length and no examples by number; clients need both: give it __len__ and "
            "__getitem__, or read it into arrays."
        )
    if not len(data):
        raise BadData(f"{type(data).__name__} ({part}) has no examples.")
    if isinstance(data, TensorDataset) and collate is default_collate and len(data.tensors) == 2 and into is None:
        return data.tensors[0].numpy(force=True), data.tensors[1].numpy(force=True)
    if collate is default_collate:
        collate = _one
    first, again = _pair(data, 0, collate), _pair(data, 0, collate)
    if any(not np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(first, again)):
        raise BadData(
            f"two readings of example 0 of {type(data).__name__} differ, and examples are read only once; take the "
            "random transform out of the Dataset and give it as transform= to run(...), in fedloom.Seeded if it draws "
            "from torch's generator."
        )
    return _read(data, first, collate, part, into, tell)


def _read(data: Any, first: Any, collate: Any, part: str, into: Path | None, tell: Tell | None) -> tuple[Any, Any]:
    """All examples, in memory or with inputs in a file."""
    count, ragged = len(data), dict[str, dict[int, NDArray[Any]]]()
    x, y = (_room(one, count, into if at == 0 else None, part) for at, one in enumerate(first))
    told = time.perf_counter()
    for at in range(count):
        pair = first if at == 0 else _pair(data, at, collate)
        for kind, values, own in zip("xy", (x, y), pair):
            if own.shape == values.shape[1:]:
                values[at] = own
            elif own.ndim == 1 and own.dtype.kind in "iu" and into is None:
                ragged.setdefault(kind, {})[at] = own  # tokens: padded at the end
            else:
                raise BadData(
                    f"example {at} of {type(data).__name__} has {'inputs' if kind == 'x' else 'targets'} of shape "
                    f"{list(own.shape)} and the first one {list(values.shape[1:])}; expected equal shapes."
                )
        if tell is not None and time.perf_counter() - told > PROGRESS_EVERY:
            told = time.perf_counter()
            tell(f"read {at + 1:,} of {count:,} examples ({part})")
    return _padded(x, ragged.get("x", {}), 0), _padded(y, ragged.get("y", {}), IGNORED)


def _room(one: NDArray[Any], count: int, into: Path | None, part: str) -> NDArray[Any]:
    """Room for all examples like this one."""
    kind = np.dtype(np.float32) if one.dtype == np.float64 else one.dtype
    if into is None:
        return np.empty((count, *one.shape), kind)
    into.mkdir(parents=True, exist_ok=True)
    return np.lib.format.open_memmap(into / f"x_{part}.npy", "w+", kind, (count, *one.shape))


def _padded(values: NDArray[Any], others: dict[int, NDArray[Any]], padding: int) -> NDArray[Any]:
    """Rows with those of other lengths among them, all padded to the longest."""
    if not others:
        return values
    longest = max(values.shape[1], *(len(one) for one in others.values()))
    rows = np.full((len(values), longest), padding, np.int64)
    for at in range(len(values)):
        own = others.get(at, values[at])
        rows[at, : len(own)] = own
    return rows


def _one(items: list[Any]) -> Any:
    """A batch of one item is the item."""
    return items[0]


def _pair(data: Any, at: int, collate: Callable[[list[Any]], Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Input and target of an example."""
    item = collate([data[at]])
    if not isinstance(item, tuple | list) or len(item) != 2:
        shown = f"a mapping with {', '.join(map(str, item))}" if isinstance(item, Mapping) else type(item).__name__
        raise BadData(
            f"example {at} of {type(data).__name__} is {shown}; expected a pair (input, target): wrap the Dataset in "
            "one whose __getitem__ returns such a pair."
        )
    x, y = (np.asarray(one.detach().cpu() if isinstance(one, torch.Tensor) else one) for one in item)
    return (x, y) if collate is _one else (x[0], y[0])


def _joined(parts: Sequence[Part], ids: Sequence[int] | None) -> Part:
    """The examples of all parts, with the number of each part's client."""
    for part in parts:
        if np.shape(part.x)[1:] != np.shape(parts[0].x)[1:]:
            raise BadData(
                f"clients have inputs of shapes {np.shape(parts[0].x)[1:]} and {np.shape(part.x)[1:]}; expected equal "
                "ones."
            )
    client = None if ids is None else np.repeat(ids, [len(part.x) for part in parts])
    x, y = (np.concatenate([np.asarray(part[at]) for part in parts]) for at in (0, 1))
    return Part(x, y, client)


def _name(source: Any) -> str:
    """What the data are called in tables and errors."""
    return type(source.dataset if isinstance(source, DataLoader) else source).__name__
