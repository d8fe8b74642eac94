"""A run's network, had back from its folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedloom import BadModel, Experiment, load_data, load_model, run

OWN = """
from torch import nn

def net(width: int = 3) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(20, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))
"""


@pytest.fixture
def data(tmp_path: Path) -> str:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(60, 20)).astype(np.float32), np.arange(60) % 2
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    return str(tmp_path / "mine.npz")


def test_a_network_of_ones_own_comes_back_with_its_settings(tmp_path: Path, data: str) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    model = {"name": f"{tmp_path}/mine.py:net", "settings": {"width": 5}}
    given = Experiment(data=data, model=model, clients=4, per_round=2, rounds=2, partition="iid", device="cpu")
    result = run(given, out=tmp_path / "run")
    found = load_model(tmp_path / "run")
    x = torch.from_numpy(load_data(data).x_test)
    assert not found.training
    assert torch.equal(found(x), result.model(x))


def test_another_network_is_refused_with_what_to_do(tmp_path: Path, data: str) -> None:
    given = Experiment(data=data, model="linear", clients=4, per_round=2, rounds=1, partition="iid", device="cpu")
    run(given, model=nn.Sequential(nn.Flatten(), nn.Linear(20, 2, bias=False)), out=tmp_path / "run")
    with pytest.raises(BadModel, match=r"not those of model 'linear'.*load_state_dict"):
        load_model(tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(BadModel, match="has not finished a round"):
        load_model(tmp_path / "run")
