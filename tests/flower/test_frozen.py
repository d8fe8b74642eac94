"""Networks with frozen layers on Flower: nodes build them by themselves, and must build the server's."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedloom.runs.experiment import Experiment
from flower_world import assert_same, fake, served, simulated, tiny, tiny_data

OWN = """
from pathlib import Path
from torch import nn

def net() -> nn.Module:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 4))
    layers[1].requires_grad_(False).bias.fill_(float((Path(__file__).parent / "pretrained").read_text()))
    return layers
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "pretrained").write_text("0.25")
    return tiny(tiny_data(tmp_path), rounds=2, model=f"{tmp_path}/mine.py:net")


def test_frozen_layers_are_not_sent_and_the_numbers_are_the_simulators(experiment: Experiment) -> None:
    ours, theirs = served(fake(experiment), experiment), simulated(experiment)
    assert_same(ours, theirs)
    frozen = 4 * 36 * 8  # bytes
    assert all(row["bytes_up"] < row["arrived"] * frozen for row in (*ours.rounds, *theirs.rounds))


def test_a_node_with_another_base_takes_no_part(
    experiment: Experiment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = fake(experiment)
    grid.before = lambda node, message: (tmp_path / "pretrained").write_text("0.5" if node == 13 else "0.25") and None
    caplog.set_level(logging.WARNING, "fedloom")
    result = served(grid, experiment, patience=0.5)
    assert [row["arrived"] for row in result.rounds] == [5, 5]  # those of the other two nodes
    assert "node 13 takes no part: the frozen parts of its network are not the server's" in caplog.text
    assert "node 12 takes no part" not in caplog.text
