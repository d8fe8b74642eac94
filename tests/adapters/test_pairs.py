"""Adapters are found by what they do, not by names; ordinary narrow layers are none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedloom import lora, neuron_map
from fedloom.models import build


def pairs(module: nn.Module, x: Tensor) -> list[tuple[str, str, str]]:
    """The names of the factors and of the frozen weight of every adapter."""
    found = neuron_map(module, x).pairs
    return [(pair.a.tensor.name, pair.b.tensor.name, pair.base) for pair in found]


class Own(nn.Module):
    """An adapter written by hand, with other names and B's answer first."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.whole, self.up = nn.Linear(6, 2, bias=False), nn.Linear(6, 5), nn.Linear(2, 5, bias=False)
        self.out = nn.Linear(5, 3)
        self.whole.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Scores."""
        return self.out(torch.relu(0.5 * self.up(self.down(x)) + self.whole(x)))


class Narrow(nn.Module):
    """Two narrow layers behind a frozen one; a frozen layer next to them reads something else."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 2), nn.Linear(2, 6)
        self.out = nn.Linear(6, 3)
        self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Scores."""
        x = self.first(x)
        return self.out(torch.relu(x + self.b(self.a(x))))


def test_adapters_of_dense_layers() -> None:
    network = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    found = pairs(lora(network, 2, targets="linear"), torch.randn(2, 6))
    assert found == [("0.a.weight", "0.b.weight", "0.base.weight"), ("2.a.weight", "2.b.weight", "2.base.weight")]


def test_an_adapter_by_hand_is_found_without_its_names() -> None:
    assert pairs(Own(), torch.randn(2, 6)) == [("down.weight", "up.weight", "whole.weight")]


def test_an_ordinary_narrow_layer_is_no_adapter() -> None:
    assert pairs(Narrow(), torch.randn(2, 6)) == []  # it reads what the frozen layer answers
    network = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2), nn.Linear(2, 6), nn.Linear(6, 3))
    network[0].requires_grad_(False)
    assert pairs(network, torch.randn(2, 6)) == []


def test_an_adapted_layer_that_answers_is_found_too() -> None:
    found = pairs(lora(nn.Linear(6, 3), 2, targets=".*|", also=()), torch.randn(2, 6))
    assert found == [("a.weight", "b.weight", "base.weight")]


@pytest.mark.parametrize(
    ("name", "shape", "words", "targets", "count"),
    [("cnn1", (1, 28, 28), 0, "all", 3), ("vit", (1, 8, 8), 0, "linear", 36), ("fasttext", (12,), 30, "all", 2)],
)
def test_adapters_of_networks_by_name(name: str, shape: tuple[int, ...], words: int, targets: str, count: int) -> None:
    x = torch.randint(1, 30, (2, *shape)) if words else torch.randn(2, *shape)
    found = neuron_map(lora(build(name, shape, 4, words), 2, targets=targets), x)
    assert len(found.pairs) == count
    assert {pair.group for pair in found.pairs} == set(found.groups)
    assert all(pair.rank == 2 for pair in found.pairs)
    for pair in found.pairs:
        assert pair.a.tensor.name.removesuffix("a.weight") == pair.b.tensor.name.removesuffix("b.weight")
        assert pair.base == pair.a.tensor.name.replace("a.weight", "base.weight")
