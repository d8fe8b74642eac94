"""Every goal on a network equals the simulator, with the experiment's data and with data of the nodes' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedloom.errors import RunStopped
from fedloom.flower import client_app
from flower_fake import FakeGrid
from flower_world import NODES, SIZES, assert_same, config_of, fake, served, simulated, tiny

TOTAL, TESTED = sum(SIZES), 20
RNG = np.random.default_rng(11)
IMAGES = RNG.random((TOTAL + TESTED, 1, 8, 8)).astype(np.float32)
WORDS = np.where(np.arange(9) < RNG.integers(3, 10, (TOTAL + TESTED, 1)), RNG.integers(1, 12, (TOTAL + TESTED, 9)), 0)
OWNER = np.repeat(np.arange(len(SIZES)), SIZES)

# goal, its inputs, its targets, settings of its network
CASES: dict[str, tuple[NDArray[Any], NDArray[Any] | None, dict[str, Any]]] = {
    "numbers": (IMAGES, RNG.random((TOTAL + TESTED, 2)), {"name": "mlp", "settings": {"widths": [6]}}),
    "labels": (IMAGES, RNG.integers(0, 2, (TOTAL + TESTED, 3)), {"name": "mlp", "settings": {"widths": [6]}}),
    "binary": (IMAGES, RNG.integers(0, 2, TOTAL + TESTED), {"name": "mlp", "settings": {"widths": [6]}}),
    "tokens": (WORDS, RNG.integers(0, 3, WORDS.shape), {"name": "char-conv", "settings": {"width": 8}}),
    "next-token": (WORDS, None, {"name": "char-conv", "settings": {"width": 8}}),
    "pixels": (IMAGES, RNG.integers(0, 3, (TOTAL + TESTED, 8, 8)), {"name": "fcn", "settings": {}}),
}


def experiment_of(folder: Path, goal: str, method: str = "fedavg", **more: Any) -> Any:
    """Three rounds of that goal on data in a file."""
    x, y, model = CASES[goal]
    arrays = {"x_train": x[:TOTAL], "x_test": x[TOTAL:], "client_train": OWNER}
    arrays |= {} if y is None else {"y_train": y[:TOTAL], "y_test": y[TOTAL:]}
    file = folder / f"{goal}.npz"
    np.savez(file, **arrays)
    return tiny(str(file), goal=goal, model=model, method=method, training={"epochs": 1, "rate": 0.05}, **more)


@pytest.mark.parametrize("method", ["fedavg", "fedspu"])
@pytest.mark.parametrize("goal", CASES)
def test_a_network_equals_the_simulator(goal: str, method: str, tmp_path: Path) -> None:
    experiment = experiment_of(tmp_path, goal, method)
    assert_same(served(fake(experiment), experiment), simulated(experiment))


def test_clients_look_at_some_of_each_stratum(tmp_path: Path) -> None:
    x, y, model = CASES["numbers"]
    assert y is not None
    arrays = {"x_train": x[:TOTAL], "y_train": y[:TOTAL], "x_test": x[TOTAL:], "y_test": y[TOTAL:]}
    np.savez(tmp_path / "own.npz", **arrays, client_train=OWNER, stratum_train=RNG.integers(0, 3, TOTAL))
    safari = {"name": "safari", "settings": {"pruner": "snip", "per_class": 1, "sparsity": 0.5}}
    experiment = tiny(str(tmp_path / "own.npz"), goal="numbers", model=model, method=safari)
    assert_same(served(fake(experiment), experiment), simulated(experiment))


@pytest.mark.parametrize("goal", CASES)
def test_own_data_are_trained_on_their_node(goal: str, tmp_path: Path) -> None:
    experiment = experiment_of(tmp_path, goal, split=(1.0, 0.0, 0.0))
    x, y, _ = CASES[goal]

    def arrays(number: int) -> dict[str, NDArray[Any]]:
        mine = np.flatnonzero(number == OWNER)
        return {"x": x[mine]} | ({} if y is None else {"y": y[mine]})

    grid = FakeGrid(client_app(arrays), config_of(experiment), dict(NODES))
    assert_same(served(grid, experiment), simulated(experiment))


@pytest.mark.parametrize(
    ("goal", "arrays"),
    [
        ("next-token", {"x": np.full((3, 9), 99)}),  # a token that the server does not know
        ("next-token", {"x": np.zeros((3, 9), np.float32)}),
        ("numbers", {"x": IMAGES[:3]}),  # no targets
        ("numbers", {"x": IMAGES[:3], "y": np.zeros((3, 5))}),  # of another width
        ("labels", {"x": IMAGES[:3], "y": np.full((3, 3), 2)}),
        ("pixels", {"x": IMAGES[:3], "y": np.zeros((3, 8, 4), int)}),
    ],
)
def test_bad_data_of_a_node_keep_it_out(goal: str, arrays: dict[str, NDArray[Any]], tmp_path: Path) -> None:
    experiment = experiment_of(tmp_path, goal)
    grid = FakeGrid(client_app(lambda number: arrays), config_of(experiment), dict(NODES))
    with pytest.raises(RunStopped, match="no node that hosts a client"):
        served(grid, experiment, patience=0.2)
