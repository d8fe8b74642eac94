"""A node's own data, from its folder or the user's function; the server is sent counts of examples, never examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.data.prepare import arranged
from fedloom.errors import BadData
from fedloom.flower.node.client_rows import restrict
from fedloom.reading.arrays import read_npz
from fedloom.runs.experiment import Experiment
from fedloom.runs.inputs import Inputs, Widths, inputs_of

OwnData = Callable[[int], Mapping[str, NDArray[Any]]]  # a client's arrays, by its number
NAMES = ("x", "y", "x_test", "y_test")


def read_folder(folder: str) -> OwnData:
    """A function that reads a client's arrays from `NUMBER.npz`."""

    def read(number: int) -> Mapping[str, NDArray[Any]]:
        return read_npz(file_of(Path(folder), number))

    return read


def file_of(folder: Path, number: int) -> Path:
    """Where a client's own data are."""
    return folder / f"{number}.npz"


def check_folder(folder: Path, clients: int) -> None:
    """Refuse a folder that lacks a client's file."""
    if lacking := [number for number in range(clients) if not file_of(folder, number).is_file()]:
        raise BadData(
            f"'{folder}' lacks {file_of(folder, lacking[0]).name}; expected a file for each of the {clients} clients, "
            f"0.npz to {clients - 1}.npz, with arrays x and y."
        )


def inputs_from_own_data(experiment: Experiment, numbers: list[int], read: OwnData, widths: Widths) -> Inputs:
    """What trains these clients on the node's own data; their places in the fleet are their numbers."""
    if not numbers or numbers[-1] >= experiment.clients:
        raise BadData(f"clients {numbers} are hosted here; expected some of 0 to {experiment.clients - 1}.")
    goal = experiment.build_goal()
    needed = ("x", "y") if goal.derive is None else ("x",)
    found = {number: _checked(number, read(number), needed, widths.vocabulary) for number in numbers}

    def concatenated(name: str) -> NDArray[Any]:
        return np.concatenate([own[name] for own in found.values() if name in own])

    def owner(name: str) -> NDArray[np.int64]:
        return np.concatenate([np.full(len(own[name]), n, np.int64) for n, own in found.items() if name in own])

    arrays = {f"{name}_train": concatenated(name) for name in needed} | {"client_train": owner("x")}
    if any("x_test" in own for own in found.values()):
        arrays |= {f"{name}_test": concatenated(f"{name}_test") for name in needed} | {"client_test": owner("x_test")}
    else:  # a data set must have a test set, although nodes test no global model
        arrays |= {f"{name}_test": arrays[f"{name}_train"][:1] for name in needed}
    data = arranged("own", arrays, "the node's own data", widths.classes, needed=[*arrays])
    if data.vocabulary > widths.vocabulary:
        raise BadData(f"tokens go up to {data.vocabulary - 1}; the server knows those below {widths.vocabulary}.")
    values = {**experiment.model_dump(), "partition": "own", "clients": len(numbers), "fleet": "none"}
    inputs = inputs_of(Experiment(**values), data=data._replace(vocabulary=widths.vocabulary))
    if inputs.outputs != widths.outputs:
        raise BadData(f"targets are {inputs.outputs} wide; the server's are {widths.outputs} wide.")
    return restrict(inputs, {number: place for place, number in enumerate(numbers)}, experiment.clients)


def _checked(
    number: int, arrays: Mapping[str, NDArray[Any]], needed: Sequence[str], vocabulary: int
) -> dict[str, NDArray[Any]]:
    """A client's arrays, if their names and shapes are right; their values are checked with those of other clients."""
    whose, own = f"client {number}", dict(arrays)
    if not {*needed} <= set(own) <= set(NAMES) or len({f"{name}_test" in own for name in needed}) > 1:
        raise BadData(
            f"{whose} has arrays {sorted(own)}; expected {' and '.join(needed)}, and "
            f"{' with '.join(f'{name}_test' for name in needed)} or neither."
        )
    for part in ("", "_test"):
        sizes = {name: len(own[f"{name}{part}"]) for name in needed if f"{name}{part}" in own}
        if sizes and (len(set(sizes.values())) > 1 or not all(sizes.values())):
            told = " and ".join(f"{name}{part} {size}" for name, size in sizes.items())
            raise BadData(f"{whose} has rows {told}; expected equally many, at least one.")
        if f"x{part}" in own and own[f"x{part}"].dtype.kind not in ("iu" if vocabulary else "f"):
            wanted = "token ids" if vocabulary else "floats, scaled as the server's test set is"
            raise BadData(f"{whose}: x{part} has type {own[f'x{part}'].dtype}; expected {wanted}.")
    return own
