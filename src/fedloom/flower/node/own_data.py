"""Data that only a node has: read from its folder or asked of the user's function; the server hears counts alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedloom.core.types import Fleet
from fedloom.data.prepare import from_arrays
from fedloom.engine.storage.shards import Shards
from fedloom.errors import BadData
from fedloom.flower.node.own_rows import only
from fedloom.runs.build import Simulation, devices_of, prepare
from fedloom.runs.experiment import Experiment

if TYPE_CHECKING:
    from fedloom.flower.server.roster import Known

OwnData = Callable[[int], Mapping[str, NDArray[Any]]]  # a client's arrays, by its number
NAMES = ("x", "y", "x_test", "y_test")


def in_folder(folder: str) -> OwnData:
    """A client's arrays are in `NUMBER.npz`."""

    def read(number: int) -> Mapping[str, NDArray[Any]]:
        file = Path(folder) / f"{number}.npz"
        try:
            with np.load(file, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        except (OSError, ValueError, EOFError) as problem:
            raise BadData(f"'{file}' cannot be read ({problem}); expected arrays x and y of client {number}.") from None

    return read


def own_world(experiment: Experiment, numbers: list[int], read: OwnData, classes: int) -> Simulation:
    """What trains these clients on data of the node's own; places in the fleet are the clients' numbers."""
    if not numbers or numbers[-1] >= experiment.clients:
        raise BadData(f"clients {numbers} are hosted here; expected some of 0 to {experiment.clients - 1}.")
    found = {number: _checked(number, read(number)) for number in numbers}

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([own[name] for own in found.values() if name in own])

    def owner(name: str) -> NDArray[np.int64]:
        return np.concatenate([np.full(len(own[name]), n, np.int64) for n, own in found.items() if name in own])

    arrays = {"x_train": joined("x"), "y_train": joined("y"), "client_train": owner("y")}
    if any("x_test" in own for own in found.values()):
        arrays |= {"x_test": joined("x_test"), "y_test": joined("y_test"), "client_test": owner("y_test")}
    else:  # nothing is tested here; a data set has a test set nonetheless
        arrays |= {"x_test": arrays["x_train"][:1], "y_test": arrays["y_train"][:1]}
    data = from_arrays("own", arrays, "the node's own data", classes)
    values = {**experiment.model_dump(), "partition": "own", "clients": len(numbers), "fleet": "none"}
    world = prepare(Experiment(**values), data=data)
    return only(world, {number: place for place, number in enumerate(numbers)}, experiment.clients)


def _checked(number: int, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """A client's arrays, if they can be used; what they hold is looked at where all data are."""
    whose, own = f"client {number}", dict(arrays)
    if not {"x", "y"} <= set(own) <= set(NAMES) or ("x_test" in own) != ("y_test" in own):
        raise BadData(f"{whose} has arrays {sorted(own)}; expected x and y, and x_test with y_test or neither.")
    for x, y in (("x", "y"), ("x_test", "y_test")):
        if x in own and (len(own[x]) != len(own[y]) or not len(own[y])):
            raise BadData(f"{whose}: {x} has {len(own[x])} rows and {y} {len(own[y])}; expected as many, one at least.")
        if x in own and own[x].dtype.kind != "f":
            raise BadData(f"{whose}: {x} has type {own[x].dtype}; expected floats, scaled as the server's test set is.")
    return own


def with_fleet(world: Simulation, experiment: Experiment, said: Mapping[int, Known], tests: bool) -> Simulation:
    """The server's simulation of a fleet whose data are with the nodes, who say how many they have of what."""
    device, size = world.model.device, experiment.clients
    known = [said[number] for number in range(size)]
    fleet = Fleet(
        torch.tensor([one.examples for one in known], device=device),
        torch.tensor([one.labels for one in known], device=device),
        devices_of(experiment, np.arange(size), device),
    )
    setting = replace(world.setting, fleet=fleet)
    world.engine.setting = world.wire.setting = setting
    nothing = Shards([torch.empty(0, dtype=torch.int64)] * size, device)
    return world._replace(setting=setting, clients=list(range(size)), own_test=(world.test, nothing) if tests else None)
