"""Nodes with data of their own: the server gets counts, and the run equals one whose server deals those data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message
from numpy.typing import NDArray

from fedloom.errors import BadExperiment, RunStopped
from fedloom.flower import client_app
from fedloom.flower.node.hosted_clients import build_clients
from fedloom.flower.protocol.assignment import parse_ranges
from fedloom.flower.protocol.records import unpack
from fedloom.runs.experiment import Experiment
from flower_fake import FakeGrid
from flower_world import NODES, SIZES, assert_same, config_of, served, simulated, tiny, tiny_data


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


def own_grid(data: str, experiment: Experiment, *nodes: int) -> FakeGrid:
    """Nodes with data of their own; all but these are away."""
    grid = FakeGrid(client_app(lambda number: arrays_of(data, number)), config_of(experiment), dict(NODES))
    grid.down |= set(NODES) - set(nodes)
    return grid


def test_too_few_clients_are_named(data: str) -> None:
    experiment = tiny(data, method="fedavg")
    with pytest.raises(RunStopped, match=r"2 of 8 clients are there, and 4 are needed.*\[0, 1, 2, 5, 6, 7\]"):
        served(own_grid(data, experiment, 12), experiment, patience=0.2)


@pytest.mark.parametrize("method", ["fedavg", "heterofl"])
def test_a_quorum_begins_and_the_others_join(data: str, method: str) -> None:
    """The third node comes in the second round; its clients are then counted with their own sizes."""
    experiment = tiny(data, method=method, split=(1.0, 0.0, 0.0), rounds=4, per_round=8)
    grid = own_grid(data, experiment, 11, 12)

    def before(node: int, message: Message) -> None:
        if message.metadata.message_type == "train" and unpack(message.content).facts["round"] == 2:
            grid.down.discard(13)

    grid.before = before
    found = served(grid, experiment, patience=0.2)
    assert [row["arrived"] for row in found.rounds] == [5, 5, 8, 8]


def test_a_resumed_run_knows_who_was_there(data: str, tmp_path: Path) -> None:
    """Two of three nodes are back: the run goes on, and clients that are away count as they did."""
    short = tiny(data, method="fedavg", split=(1.0, 0.0, 0.0), rounds=1, per_round=8)
    out = str(tmp_path / "run")
    served(own_grid(data, short, *NODES), short, out=out)
    whole = tiny(data, method="fedavg", split=(1.0, 0.0, 0.0), rounds=2, per_round=8)
    found = served(own_grid(data, whole, 11, 13), whole, out=out, resume=True, patience=0.2)
    assert [row["arrived"] for row in found.rounds] == [8, 6]
    read = json.loads((tmp_path / "run/checkpoint/clients.json").read_text())
    assert [row[1] for row in read["clients"]] == list(SIZES)


def test_other_sizes_of_a_client_keep_its_node_out(data: str, caplog: pytest.LogCaptureFixture) -> None:
    """A node is away for a round, and comes back with fewer examples."""
    experiment = tiny(data, method="fedavg", split=(1.0, 0.0, 0.0), rounds=4, per_round=8)
    fewer: set[int] = set()

    def arrays(number: int) -> dict[str, NDArray[np.generic]]:
        return {name: array[: 2 if number in fewer else None] for name, array in arrays_of(data, number).items()}

    grid = FakeGrid(client_app(arrays), config_of(experiment), dict(NODES))

    def before(node: int, message: Message) -> None:
        if message.metadata.message_type == "train":
            number = unpack(message.content).facts["round"]
            (grid.down.add if number == 1 else grid.down.discard)(12)
            if number == 2:
                fewer.add(3)
                build_clients.cache_clear()  # it was started again

    grid.before = before
    found = served(grid, experiment, deadline=1.0)
    assert "node 12 takes no part: its client 3 has 2 examples" in caplog.text
    assert [row["arrived"] for row in found.rounds][2:] == [6, 6]


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
