"""A node's own data, from its folder or the user's function; the server is sent counts of examples, never examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.data.prepare import from_arrays
from fedloom.errors import BadData
from fedloom.flower.node.client_rows import restrict
from fedloom.runs.experiment import Experiment
from fedloom.runs.inputs import Inputs, inputs_of

OwnData = Callable[[int], Mapping[str, NDArray[Any]]]  # a client's arrays, by its number
NAMES = ("x", "y", "x_test", "y_test")


def read_folder(folder: str) -> OwnData:
    """A function that reads a client's arrays from `NUMBER.npz`."""

    def read(number: int) -> Mapping[str, NDArray[Any]]:
        file = Path(folder) / f"{number}.npz"
        try:
            with np.load(file, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        except (OSError, ValueError, EOFError) as problem:
            raise BadData(f"'{file}' cannot be read ({problem}); expected arrays x and y of client {number}.") from None

    return read


def inputs_from_own_data(experiment: Experiment, numbers: list[int], read: OwnData, classes: int) -> Inputs:
    """What trains these clients on the node's own data; their places in the fleet are their numbers."""
    if not numbers or numbers[-1] >= experiment.clients:
        raise BadData(f"clients {numbers} are hosted here; expected some of 0 to {experiment.clients - 1}.")
    found = {number: _checked(number, read(number)) for number in numbers}

    def concatenated(name: str) -> NDArray[Any]:
        return np.concatenate([own[name] for own in found.values() if name in own])

    def owner(name: str) -> NDArray[np.int64]:
        return np.concatenate([np.full(len(own[name]), n, np.int64) for n, own in found.items() if name in own])

    arrays = {"x_train": concatenated("x"), "y_train": concatenated("y"), "client_train": owner("y")}
    if any("x_test" in own for own in found.values()):
        arrays |= {"x_test": concatenated("x_test"), "y_test": concatenated("y_test"), "client_test": owner("y_test")}
    else:  # a data set must have a test set, although nodes test no global model
        arrays |= {"x_test": arrays["x_train"][:1], "y_test": arrays["y_train"][:1]}
    data = from_arrays("own", arrays, "the node's own data", classes)
    values = {**experiment.model_dump(), "partition": "own", "clients": len(numbers), "fleet": "none"}
    inputs = inputs_of(Experiment(**values), data=data)
    return restrict(inputs, {number: place for place, number in enumerate(numbers)}, experiment.clients)


def _checked(number: int, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """A client's arrays, if their names and shapes are right; `from_arrays` checks their values."""
    whose, own = f"client {number}", dict(arrays)
    if not {"x", "y"} <= set(own) <= set(NAMES) or ("x_test" in own) != ("y_test" in own):
        raise BadData(f"{whose} has arrays {sorted(own)}; expected x and y, and x_test with y_test or neither.")
    for x, y in (("x", "y"), ("x_test", "y_test")):
        if x in own and (len(own[x]) != len(own[y]) or not len(own[y])):
            raise BadData(
                f"{whose}: {x} has {len(own[x])} rows and {y} {len(own[y])}; expected equally many, at least one."
            )
        if x in own and own[x].dtype.kind != "f":
            raise BadData(f"{whose}: {x} has type {own[x].dtype}; expected floats, scaled as the server's test set is.")
    return own
