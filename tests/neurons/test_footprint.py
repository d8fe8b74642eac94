"""Memory of training: counted by hand, and next to FedSPU's figure 5."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedloom.errors import BadExperiment
from fedloom.models import build, example
from fedloom.neurons.footprint import Footprint, footprint
from fedloom.neurons.table import memory_table
from fedloom.neurons.trace import neuron_map
from neurons.test_table import row, text

NET = nn.Sequential(
    nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(),
    nn.Linear(4 * 9, 10), nn.ReLU(), nn.Linear(10, 3),
)  # fmt: skip
X = torch.zeros(2, 1, 6, 6)


def numbers(channels: int, units: int) -> tuple[int, int, int]:
    """Weights with statistics, trained ones, and activations of one example, from the layers' sizes."""
    trained = channels * 10 + channels * 2 + channels * 9 * units + units + units * 3 + 3
    conv, pooled = channels * 36, channels * 9
    return trained + 2 * channels, trained, conv + conv + pooled + 2 * units + 3  # ReLU in place, flatten for free


@pytest.mark.parametrize("batch", [1, 16])
def test_by_hand(batch: int) -> None:
    half, whole = numbers(2, 5), numbers(4, 10)
    assert footprint(NET, X, 0.5, batch) == Footprint(4 * half[0], 4 * half[1], 4 * batch * half[2])
    frozen = Footprint(4 * whole[0], 4 * half[1], 4 * batch * whole[2])
    assert footprint(NET, X, 0.5, batch, "frozen") == frozen
    assert footprint(NET, X, 0.5, batch, "active") == frozen._replace(activations=4 * batch * half[2])
    full = footprint(NET, X, 1.0, batch)
    assert (
        full == footprint(NET, X, 1.0, batch, "frozen") == Footprint(4 * whole[0], 4 * whole[1], 4 * batch * whole[2])
    )
    assert full.total == 4 * (whole[0] + whole[1] + batch * whole[2])


def test_the_network_is_left_as_it_was() -> None:
    net = NET.train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    for execution in ("sliced", "frozen", "active"):
        footprint(net, X + 1, 0.5, 2, execution)
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


PAPER = {"spu-emnist": ((1, 28, 28), 62, 16), "spu-cifar": ((3, 32, 32), 10, 128), "spu-speech": ((1, 32, 32), 35, 16)}


def saving(share: float, execution: str, alone: bool) -> float:
    """The mean over the paper's three networks of what a share saves, by single examples or the paper's batches."""
    saved = []
    for name, (shape, classes, batch) in PAPER.items():
        net, x = build(name, shape, classes), example(shape)
        part, whole = (footprint(net, x, p, 1 if alone else batch, execution).total for p in (share, 1.0))
        saved.append(1 - part / whole)
    return sum(saved) / len(saved)


def test_figure_5_counts_active_neurons_and_one_example() -> None:
    """The paper's 54, 44, 31 and 18 % come out within two points if frozen activations are left out of the count."""
    for share, reported in ((0.2, 0.54), (0.4, 0.44), (0.6, 0.31), (0.8, 0.18)):
        assert saving(share, "active", alone=True) == pytest.approx(reported, abs=0.02)


def test_a_network_that_runs_as_a_whole_saves_little() -> None:
    assert saving(0.2, "frozen", alone=True) == pytest.approx(0.30, abs=0.01)
    assert saving(0.2, "frozen", alone=False) < 0.04
    assert saving(0.2, "sliced", alone=False) > 0.8


def test_the_table() -> None:
    shown = text(memory_table(NET, X, neuron_map(NET, X), 8, (0.5, 1.0)))
    cells = [footprint(NET, X, 0.5, 8, execution).total for execution in ("sliced", "frozen", "active")]
    assert [cell.split()[0] for cell in row(shown, "0.5")[1:]] == [f"{cell:,}" for cell in cells]
    assert row(shown, "1")[1:] == [f"{footprint(NET, X, 1.0, 8).total:,} (100.0%)"] * 3


@pytest.mark.parametrize(("changes", "says"), [({"execution": "frozn"}, "'frozen'"), ({"batch": 0}, "batch is 0")])
def test_refusals(changes: dict[str, object], says: str) -> None:
    with pytest.raises(BadExperiment, match=says):
        footprint(NET, X, 0.5, **changes)
