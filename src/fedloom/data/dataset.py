"""`Dataset`, and checks of its arrays; those of targets are in `targets.py`, since they depend on the goal."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedloom.data.sampling import Ints
from fedloom.errors import BadData

NEEDED = ("x_train", "y_train", "x_test", "y_test")
OPTIONAL = ("client_train", "client_test", "stratum_train")
BLOCK = 4096  # rows checked at a time, to save memory


class Dataset(NamedTuple):
    """Examples for training and testing, ready for a model."""

    name: str
    # images are float32 [n, channels, h, w], other numbers float32 [n, ...], tokens int64 [n, length]
    x_train: NDArray[Any]
    y_train: NDArray[Any]  # [n, ...]: classes int64, numbers float32
    x_test: NDArray[Any]
    y_test: NDArray[Any]
    client_train: Ints | None  # [n] the client of each example, if the data have clients
    client_test: Ints | None
    classes: int  # of targets, 0 where they are not counted yet; where they are numbers, how many an example has
    vocabulary: int  # token ids run from 0 (padding) to vocabulary - 1; 0 where the data are not text
    stratum_train: Ints | None = None  # [n] what partitions deal by, where targets are no classes
    client_names: tuple[str, ...] | None = None  # the name of client id k, where ids were texts
    class_names: tuple[str, ...] | None = None  # the name of class k, where labels were texts
    divided: bool = False  # the data come as clients' own, so that partition 'own' is meant unless another is named


def check(arrays: Mapping[str, Any], file: str, needed: Sequence[str] = NEEDED) -> None:
    """Refuse inputs, ids and lengths that cannot be used, with file, array and row in the error (from 0)."""
    for name in needed:
        if arrays.get(name) is None:
            found = ", ".join(name for name in sorted(arrays) if arrays[name] is not None) or "none"
            raise BadData(f"{file}: array {name} is missing; expected {', '.join(needed)}, found {found}")
    for part in ("train", "test"):
        x, y, client = arrays[f"x_{part}"], arrays.get(f"y_{part}"), arrays.get(f"client_{part}")
        _check_values(f"{file}: array x_{part}", x, client)
        if y is not None and y.dtype.kind not in "fiub":
            raise BadData(f"{file}: array y_{part} has type {y.dtype}; expected numbers or texts")
        if y is not None and y.ndim and len(x) != len(y):
            raise BadData(f"{file}: array x_{part} has {len(x)} rows and y_{part} has {len(y)}; expected equal numbers")
        for kind, what in (("client", "client ids"), ("stratum", "strata")):
            ids = arrays.get(f"{kind}_{part}")
            if ids is not None:
                check_ids(f"{file}: array {kind}_{part}", ids, what)
                if len(ids) != len(x):
                    raise BadData(f"{file}: array {kind}_{part} has {len(ids)} rows, x_{part} has {len(x)}")
    if arrays["x_train"].shape[1:] != arrays["x_test"].shape[1:]:
        shapes = f"{arrays['x_train'].shape[1:]} and {arrays['x_test'].shape[1:]}"
        raise BadData(f"{file}: rows of arrays x_train and x_test have shapes {shapes}; expected equal ones")


def _check_values(where: str, x: NDArray[Any], client: NDArray[Any] | None) -> None:
    """Refuse inputs that are not finite numbers."""
    if x.dtype.kind not in "fiub":
        raise BadData(f"{where} has type {x.dtype}; expected numbers (float, integer or uint8)")
    if x.ndim < 2 or not x.size:
        raise BadData(f"{where} has shape {x.shape}; expected at least one example, [n, ...]")
    if x.dtype.kind != "f":
        return
    largest = np.finfo(np.float32).max
    for start in range(0, len(x), BLOCK):
        block = x[start : start + BLOCK].reshape(len(x[start : start + BLOCK]), -1)
        if not (block.min() >= -largest and block.max() <= largest):  # a NaN becomes the minimum, and compares false
            row, place = np.argwhere(~(np.abs(block) <= largest))[0]
            whose = _whose(client, start + row)
            raise BadData(
                f"{where}, row {start + row}{whose} holds {block[row, place]}; expected finite float32 numbers"
            )


def check_ids(where: str, values: NDArray[Any], what: str) -> None:
    """Refuse ids that are not whole numbers [n]."""
    if values.dtype.kind not in "fiub":
        raise BadData(f"{where} has type {values.dtype}; expected whole numbers as {what}")
    if values.ndim != 1 or not values.size:
        raise BadData(f"{where} has shape {values.shape}; expected at least one of the {what}, [n]")
    refuse_fractions(where, values, None)


def refuse_fractions(where: str, values: NDArray[Any], client: NDArray[Any] | None) -> None:
    """Refuse values [n, ...] that are not whole numbers."""
    if values.dtype.kind == "f":
        whole = np.isfinite(values) & (np.abs(values) < 2**53)
        whole[whole] = values[whole] == np.floor(values[whole])
        refuse_row(~whole, where, values, client, "expected a whole number")


def refuse_row(
    bad: NDArray[np.bool_], where: str, values: NDArray[Any], client: NDArray[Any] | None, expected: str
) -> None:
    """Raise `BadData` with the first bad row of values [n, ...], if there is one."""
    if bad.any():
        row, *place = (int(at) for at in np.unravel_index(int(bad.argmax()), bad.shape))
        raise BadData(f"{where}, row {row}{_whose(client, row)} holds {values[row, *place]}; {expected}")


def _whose(client: NDArray[Any] | None, row: int) -> str:
    """The client of a row, for an error message."""
    return "" if client is None or row >= len(client) else f" (client {client[row]})"
