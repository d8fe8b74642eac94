"""`from_arrays`, which checks arrays and brings them into layout, number type and scale of a dataset."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.data.dataset import BLOCK, Dataset, check
from fedloom.data.sampling import Ints
from fedloom.errors import BadData

Scale = tuple[Sequence[float], Sequence[float]]  # mean and standard deviation of each channel, of pixels in 0..1


def from_arrays(
    name: str,
    arrays: Mapping[str, NDArray[Any]],
    file: str | None = None,
    classes: int | None = None,
    scale: Scale | None = None,
) -> Dataset:
    """Make a dataset from x_train, y_train, x_test, y_test and, if known, client_train and client_test.

    uint8 are images or the like: scaled to 0..1, then standardised per channel. Other integers [n, length] are tokens.
    Floats stay as they are.
    """
    file = name if file is None else file
    check(arrays, file, classes)
    x_train, x_test = arrays["x_train"], arrays["x_test"]
    if x_train.dtype.kind != x_test.dtype.kind or (x_train.dtype == np.uint8) != (x_test.dtype == np.uint8):
        raise BadData(f"{file}: arrays x_train and x_test have types {x_train.dtype} and {x_test.dtype}; expected one")
    vocabulary = 0
    if x_train.dtype == np.uint8:
        x_train, x_test = _channels_first(x_train), _channels_first(x_test)
        scale = _measure(x_train) if scale is None else scale
        x_train, x_test = _standardise(x_train, scale), _standardise(x_test, scale)
    elif x_train.dtype.kind in "iu" and x_train.ndim == 2:
        x_train, x_test = (_tokens(arrays, part, file) for part in ("train", "test"))
        vocabulary = int(max(x_train.max(), x_test.max())) + 1
    else:
        x_train, x_test = (np.ascontiguousarray(x, np.float32) for x in (x_train, x_test))
    y_train = arrays["y_train"].astype(np.int64)
    return Dataset(
        name,
        x_train,
        y_train,
        x_test,
        arrays["y_test"].astype(np.int64),
        _ids(arrays.get("client_train")),
        _ids(arrays.get("client_test")),
        int(y_train.max()) + 1 if classes is None else classes,
        vocabulary,
    )


def _ids(client: NDArray[Any] | None) -> Ints | None:
    """Client ids as int64, if there are any."""
    return None if client is None else client.astype(np.int64)


def _tokens(arrays: Mapping[str, NDArray[Any]], part: str, file: str) -> Ints:
    """Token ids as int64; negative ones and those from 2^31 are refused."""
    x = arrays[f"x_{part}"]
    bad = ((x < 0) | (x >= 2**31)).any(axis=1)
    if bad.any():
        row = int(bad.argmax())
        raise BadData(
            f"{file}: array x_{part}, row {row} holds {x[row].min()} to {x[row].max()}; integers [n, length] are "
            "taken as token ids, from 0 (padding); save other numbers as float32"
        )
    return x.astype(np.int64)


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
