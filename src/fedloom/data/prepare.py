"""`from_arrays`, which checks arrays and brings them into layout, number type and scale of a dataset."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedloom.core.goal import Goal
from fedloom.data.dataset import BLOCK, NEEDED, OPTIONAL, Dataset, check
from fedloom.data.sampling import Ints, held_out
from fedloom.data.targets import for_goal
from fedloom.errors import BadData
from fedloom.goals import classes as one_class

Scale = tuple[Sequence[float], Sequence[float]]  # mean and standard deviation of each channel, of pixels in 0..1


def from_arrays(
    name: str,
    arrays: Mapping[str, Any],
    file: str | None = None,
    classes: int | None = None,
    scale: Scale | None = None,
    goal: Goal | None = None,
) -> Dataset:
    """Make a dataset from x_train, y_train, x_test, y_test and, if known, client_train, client_test, stratum_train.

    uint8 are images or the like: scaled to 0..1, then standardised per channel. Other integers [n, length] are tokens.
    Floats become float32, without a copy where they are. Labels and ids may be texts, whose names the dataset keeps.
    Targets are those of `goal`, one class per example unless another is given.
    """
    goal, file = goal or one_class(), name if file is None else file
    needed = NEEDED if goal.derive is None else ("x_train", "x_test")
    return for_goal(arranged(name, arrays, file, classes or 0, scale, needed), goal, file)


def arranged(
    name: str,
    arrays: Mapping[str, Any],
    file: str,
    classes: int = 0,
    scale: Scale | None = None,
    needed: Sequence[str] = NEEDED,
) -> Dataset:
    """The arrays as a dataset whose targets are as they came: `for_goal` brings them into a goal's form."""
    found = {key: _array(arrays[key]) for key in (*NEEDED, *OPTIONAL) if arrays.get(key) is not None}
    names: dict[str, tuple[str, ...] | None] = {}
    for kind in ("y", "client", "stratum"):
        names[kind] = _without_texts(found, kind, file)
    check(found, file, needed)
    x_train, x_test = found["x_train"], found["x_test"]
    if x_train.dtype.kind != x_test.dtype.kind or (x_train.dtype == np.uint8) != (x_test.dtype == np.uint8):
        raise BadData(f"{file}: arrays x_train and x_test have types {x_train.dtype} and {x_test.dtype}; expected one")
    vocabulary = 0
    if x_train.dtype == np.uint8:
        x_train, x_test = _channels_first(x_train), _channels_first(x_test)
        scale = _measure(x_train) if scale is None else scale
        x_train, x_test = _standardise(x_train, scale), _standardise(x_test, scale)
    elif x_train.dtype.kind in "iu" and x_train.ndim == 2:
        x_train, x_test = (_tokens(found[f"x_{part}"], part, file) for part in ("train", "test"))
        vocabulary = int(max(x_train.max(), x_test.max())) + 1
    else:
        x_train, x_test = _floats(x_train), _floats(x_test)
    nothing = np.empty(0, np.int64)
    return Dataset(
        name, x_train, found.get("y_train", nothing), x_test, found.get("y_test", nothing),
        _ids(found.get("client_train")), _ids(found.get("client_test")),
        classes or len(names["y"] or ()), vocabulary,
        stratum_train=_codes(found.get("stratum_train")), client_names=names["client"], class_names=names["y"],
    )  # fmt: skip


def renewed(data: Dataset, file: str) -> Dataset:
    """A dataset that somebody built, with arrays of the types and layouts that `from_arrays` gives them."""
    arrays = {key: getattr(data, key) for key in (*NEEDED, *OPTIONAL)}
    arrays = {key: one for key, one in arrays.items() if key[0] != "y" or (one is not None and np.size(one))}
    made = arranged(data.name, arrays, file, data.classes, needed=("x_train", "x_test"))
    return made._replace(
        vocabulary=max(data.vocabulary, made.vocabulary), divided=data.divided,
        client_names=made.client_names or data.client_names, class_names=made.class_names or data.class_names,
    )  # fmt: skip


class Part(NamedTuple):
    """Examples of one set, as they come."""

    x: Any
    y: Any = None
    client: Any = None
    stratum: Any = None

    def take(self, rows: Ints) -> "Part":
        """Some of the examples."""
        return Part(*(None if one is None else _array(one)[rows] for one in self))


def assembled(name: str, train: Part, test: Part | None, file: str | None = None) -> Dataset:
    """A dataset of two sets; without a test set, a fixed fifth of every class, else of all examples, becomes one."""
    if test is None:
        train, test = halved(train)
    arrays = {f"{key}_train": one for key, one in train._asdict().items()}
    arrays |= {f"{key}_test": one for key, one in test._asdict().items() if key != "stratum"}
    return arranged(name, arrays, f"data '{name}'" if file is None else file, needed=("x_train", "x_test"))


def halved(whole: Part) -> tuple[Part, Part]:
    """A fixed fifth of every stratum or class, else of all examples, apart for testing."""
    y = None if whole.y is None else _array(whole.y)
    strata = _array(whole.stratum) if whole.stratum is not None else y
    labelled = strata is not None and strata.ndim == 1 and strata.dtype.kind != "f"
    if strata is None or not labelled or 2 * len(np.unique(strata)) > len(strata):  # numbers rather than classes
        strata = np.zeros(len(whole.x), np.int64)
    chosen = held_out(strata)
    return whole.take(np.flatnonzero(~chosen)), whole.take(np.flatnonzero(chosen))


def _array(values: ArrayLike) -> NDArray[Any]:
    """An array of what may be a tensor or a list; memory-mapped arrays stay what they are."""
    if isinstance(values, np.ndarray):
        return values
    detach = getattr(values, "detach", None)  # of a tensor
    return np.asarray(values if detach is None else detach().cpu().numpy())


def _without_texts(arrays: dict[str, NDArray[Any]], kind: str, file: str) -> tuple[str, ...] | None:
    """Replace texts in the arrays of this kind by their ranks in sorted order; return the texts, if there are any.

    Texts that are all whole numbers become these numbers.
    """
    keys = [f"{kind}_{part}" for part in ("train", "test") if f"{kind}_{part}" in arrays]
    if not any(arrays[key].dtype.kind in "US" for key in keys):
        return None
    texts = {key: _texts(arrays[key], f"{file}: array {key}") for key in keys}
    try:
        arrays |= {key: one.astype(np.int64) for key, one in texts.items()}
        return None
    except (ValueError, OverflowError):
        pass
    names, codes = np.unique(np.concatenate([one.ravel() for one in texts.values()]), return_inverse=True)
    ends = np.cumsum([one.size for one in texts.values()])[:-1]
    for (key, one), own in zip(texts.items(), np.split(codes, ends)):
        arrays[key] = own.reshape(one.shape).astype(np.int64)
    return tuple(str(one) for one in names)


def _texts(values: NDArray[Any], where: str) -> NDArray[np.str_]:
    """Values as texts; those that no text has are refused."""
    try:
        texts = values.astype(str)
        codes = np.ascontiguousarray(texts).view(np.uint32) if texts.size and texts.itemsize else np.empty(0, np.uint32)
        if (codes > sys.maxunicode).any():
            raise ValueError(f"code point {codes.max()}")
        "".join(texts.ravel().tolist()).encode()
        return texts
    except ValueError as problem:
        raise BadData(f"{where} holds what is no text ({problem}); save the texts again") from problem


def _floats(x: NDArray[Any]) -> NDArray[Any]:
    """Numbers as float32; what is so already is not copied, so that memory-mapped arrays stay where they are."""
    return x if x.dtype == np.float32 and x.flags.c_contiguous else np.ascontiguousarray(x, np.float32)


def _codes(values: NDArray[Any] | None) -> Ints | None:
    """Strata as whole numbers from 0 without gaps."""
    return None if values is None else np.unique(values, return_inverse=True)[1].astype(np.int64)


def _ids(client: NDArray[Any] | None) -> Ints | None:
    """Client ids as int64, if there are any."""
    return None if client is None else client.astype(np.int64)


def _tokens(x: NDArray[Any], part: str, file: str) -> Ints:
    """Token ids as int64; negative ones and those from 2^31 are refused."""
    if x.min() < 0 or x.max() >= 2**31:
        bad = ((x < 0) | (x >= 2**31)).any(axis=1)
        row = int(bad.argmax())
        raise BadData(
            f"{file}: array x_{part}, row {row} holds {x[row].min()} to {x[row].max()}; integers [n, length] are "
            "taken as token ids, from 0 (padding); save other numbers as float32"
        )
    return x.astype(np.int64, copy=False)


def _channels_first(x: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Images [n, h, w] or [n, h, w, channels] as [n, channels, h, w]; anything else as it is."""
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[-1] in (1, 3):
        return x.transpose(0, 3, 1, 2)
    return x


def _measure(x: NDArray[np.uint8]) -> Scale:
    """Mean and standard deviation of each channel of pixels in 0..1, exact in any order of the examples."""
    channels = x.shape[1] if x.ndim == 4 else 1
    total, squares = np.zeros(channels, np.int64), np.zeros(channels, np.int64)
    for start in range(0, len(x), BLOCK):
        block = x[start : start + BLOCK].astype(np.int64)
        block = block.reshape(len(block), channels, -1)
        total += block.sum(axis=(0, 2))
        squares += (block * block).sum(axis=(0, 2))
    mean = total / (x.size // channels)
    deviation = np.sqrt(np.maximum(squares / (x.size // channels) - mean**2, 0))
    return (mean / 255).tolist(), np.where(deviation == 0, 1, deviation / 255).tolist()


def _standardise(x: NDArray[np.uint8], scale: Scale) -> NDArray[np.float32]:
    """Pixels 0..255 as float32 with mean 0 and standard deviation 1."""
    shape = (-1, 1, 1) if x.ndim == 4 else (-1,)
    mean, deviation = (255 * np.asarray(part, np.float32).reshape(shape) for part in scale)
    result = x.astype(np.float32, order="C")
    result -= mean
    result /= deviation
    return result
