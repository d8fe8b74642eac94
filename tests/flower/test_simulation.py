"""Flower's own simulation (Ray) as another way to run: fedloom's apps on virtual nodes equal the simulator."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedloom import Experiment, run
from flower_processes import Trial

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is missing; pip install 'flwr[simulation]' brings it"),
]


NODES = 3


class Virtual(Trial):
    """A SuperLink that runs its nodes itself, on Ray."""

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        more = {"link": ["--simulation"], "run": ["--federation-config", f"num-supernodes={NODES}"]}
        return super()._start(name, *command, *more[name])


@pytest.mark.parametrize("method", ["fedavg", "feddd"])
def test_virtual_nodes_equal_the_simulator(method: str, tmp_path: Path) -> None:
    experiment = Experiment(
        method=method, fleet="equal", clients=5, per_round=None if method == "feddd" else 3, rounds=3, device="cpu",
        training={"epochs": 1},
    )  # fmt: skip
    trial = Virtual(tmp_path, [])
    try:
        said = trial.run(experiment, 240, out=str(tmp_path / "run"))
        made = tmp_path / "run" / "model.safetensors"
        assert made.exists(), said
    finally:
        trial.stop()
    own = run(experiment).model.state_dict()
    found = load_file(made)
    assert found.keys() == own.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, own[name], rtol=0, atol=1e-5)
