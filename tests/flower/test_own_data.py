"""Nodes with data of their own: the server gets counts, and the run equals one whose server deals those data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedloom.errors import BadExperiment, RunStopped
from fedloom.flower import client_app
from fedloom.flower.protocol.assignment import parse_ranges
from flower_fake import FakeGrid
from flower_world import NODES, assert_same, config_of, served, simulated, tiny, tiny_data


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_data(tmp_path_factory.mktemp("data"))


def arrays_of(data: str, number: int) -> dict[str, NDArray[np.generic]]:
    with np.load(data, allow_pickle=False) as arrays:
        mine = arrays["client_train"] == number
        return {"x": arrays["x_train"][mine], "y": arrays["y_train"][mine]}


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedspu", "heterofl"])
@pytest.mark.parametrize("way", ["folder", "function"])
def test_own_data_are_trained_on_their_node(data: str, tmp_path: Path, method: str, way: str) -> None:
    experiment = tiny(data, method=method, split=(1.0, 0.0, 0.0))
    nodes: dict[int, dict[str, object]] = {node: dict(own) for node, own in NODES.items()}
    app = client_app((lambda number: arrays_of(data, number)) if way == "function" else None)
    if way == "folder":
        for node, own in NODES.items():
            (tmp_path / str(node)).mkdir()
            nodes[node]["data"] = str(tmp_path / str(node))
            for number in parse_ranges(own["clients"]):
                np.savez(tmp_path / str(node) / f"{number}.npz", **arrays_of(data, number))
    grid = FakeGrid(app, config_of(experiment), nodes)
    wanted = simulated(experiment)
    assert_same(served(grid, experiment), wanted)


def test_own_tests_are_tried_on_their_node(data: str) -> None:
    experiment = tiny(data, method="fedspu", split=(1.0, 0.0, 0.0))

    def arrays(number: int) -> dict[str, NDArray[np.generic]]:
        own = arrays_of(data, number)
        return {**own, "x_test": own["x"], "y_test": own["y"]}

    found = served(FakeGrid(client_app(arrays), config_of(experiment), dict(NODES)), experiment)
    assert all(0 <= row["personal_accuracy"] <= 1 for row in found.rounds)


def test_a_client_without_a_node_is_named(data: str) -> None:
    experiment = tiny(data, method="fedavg")
    app = client_app(lambda number: arrays_of(data, number))
    grid = FakeGrid(app, config_of(experiment), {11: NODES[11], 12: NODES[12]})
    with pytest.raises(RunStopped, match=r"\[5, 6, 7\]"):
        served(grid, experiment, patience=0.2)


@pytest.mark.parametrize(
    "arrays",
    [
        {"x": np.zeros((3, 1, 6, 6), np.float32)},
        {"x": np.zeros((3, 1, 6, 6), np.float32), "y": np.zeros(2, np.int64)},
        {"x": np.zeros((3, 1, 6, 6), np.uint8), "y": np.zeros(3, np.int64)},
        {"x": np.full((3, 1, 6, 6), np.nan, np.float32), "y": np.zeros(3, np.int64)},
        {"x": np.zeros((3, 1, 6, 6), np.float32), "y": np.full(3, 9)},
        {"x": np.zeros((0, 1, 6, 6), np.float32), "y": np.zeros(0, np.int64)},
    ],
)
def test_bad_data_of_a_node_keep_it_out(data: str, arrays: dict[str, NDArray[np.generic]]) -> None:
    experiment = tiny(data, method="fedavg")
    grid = FakeGrid(client_app(lambda number: arrays), config_of(experiment), dict(NODES))
    with pytest.raises(RunStopped, match="no node that hosts a client"):
        served(grid, experiment, patience=0.2)


@pytest.mark.parametrize("text", ["", "a", "3-1", "-1", "1,,2", "1.5"])
def test_clients_must_be_numbers(text: str) -> None:
    with pytest.raises(BadExperiment, match="expected numbers and ranges"):
        parse_ranges(text)


def test_clients_are_numbers_and_ranges() -> None:
    assert parse_ranges("7, 0-2,2") == [0, 1, 2, 7]
