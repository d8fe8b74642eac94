"""Reading a network as layers in a row: which networks are one, and what happens where one is misread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.types import Examples
from fedloom.engine import plain_layers as reading
from fedloom.engine.gradient.dropout import keyed
from fedloom.engine.plain_layers import PlainLayer, plain_layers
from fedloom.goals import numbers
from worlds import CLASSES, World, world_of


class Written(nn.Module):
    """Linear layers in a row, in functions instead of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(12, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(F.relu(self.one(torch.flatten(x, 1))))


class Again(Written):
    """A layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.mid = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.mid(self.mid(self.one(x.flatten(1)))))


class Around(Written):
    """What ReLU made is read twice."""

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.one(x.flatten(1)))
        return self.two(inner + inner)


def frozen_layer() -> nn.Module:
    """One layer takes no part in training."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, CLASSES))
    network[1].requires_grad_(False)
    return network


def here(network: nn.Module) -> World:
    """The network on made-up images."""
    x = (torch.arange(40 * 12) * 0.37).sin().view(40, 1, 3, 4)
    return world_of(network, Examples(x, torch.arange(40) * 7 % CLASSES), torch.arange(40).split(10))


def images(*layers: nn.Module, after: int) -> Callable[[], nn.Module]:
    """Layers over an image, then one linear layer."""
    return lambda: nn.Sequential(*layers, nn.Flatten(), nn.Linear(after, CLASSES))


ROWS: dict[str, tuple[Callable[[], nn.Module], tuple[PlainLayer, ...]]] = {
    "functions": (Written, (PlainLayer("one", True, relu=True), PlainLayer("two", True))),
    "no bias": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 5, bias=False), nn.Linear(5, CLASSES)),
        (PlainLayer("1", False), PlainLayer("2", True)),
    ),
    "pooled": (
        images(nn.Conv2d(1, 2, 3, padding=(1, 0)), nn.ReLU(), nn.MaxPool2d(2), after=2),
        (PlainLayer("0", True, (1, 0), pool=True, relu=True), PlainLayer("4", True)),
    ),
    "pooled before ReLU": (
        images(nn.Conv2d(1, 2, 2), nn.MaxPool2d((2, 2)), nn.ReLU(), after=2),
        (PlainLayer("0", True, (0, 0), pool=True, relu=True), PlainLayer("4", True)),
    ),
}
OTHERS: dict[str, Callable[[], nn.Module]] = {
    "again": Again,
    "around": Around,
    "tanh": lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, CLASSES)),
    "relu at the end": lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, CLASSES), nn.ReLU()),
    "not flattened": lambda: nn.Sequential(nn.Linear(4, 2), nn.Flatten(), nn.Linear(6, CLASSES)),
    "frozen layer": frozen_layer,
    "dropout": lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.0), nn.Linear(12, CLASSES)),
    "keyed dropout": lambda: keyed(
        nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Dropout(), nn.Linear(5, CLASSES))
    ).eval(),
    "stride": images(nn.Conv2d(1, 3, 2, stride=2), after=6),
    "groups": images(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 4, 2, groups=2), after=24),
    "dilation": images(nn.Conv2d(1, 3, 2, dilation=2), after=6),
    "large windows": images(nn.Conv2d(1, 3, 1), nn.MaxPool2d(3), after=3),
    "overlapping windows": images(nn.Conv2d(1, 3, 1), nn.MaxPool2d(2, stride=1), after=18),
    "padded windows": images(nn.Conv2d(1, 3, 1), nn.MaxPool2d(2, padding=1), after=18),
    "windows rounded up": images(nn.Conv2d(1, 3, 1), nn.MaxPool2d(2, ceil_mode=True), after=12),
    "norm": images(nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3), nn.ReLU(), after=36),
    "reflected": images(nn.Conv2d(1, 3, 3, padding=1, padding_mode="reflect"), after=36),
}


@pytest.mark.parametrize("name", ROWS)
def test_layers_in_a_row(name: str) -> None:
    network, wanted = ROWS[name]
    assert plain_layers(here(network()).setting) == wanted


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks(name: str) -> None:
    assert plain_layers(here(OTHERS[name]()).setting) is None


def test_the_loss_does_not_matter() -> None:
    setting = here(Written()).setting
    assert plain_layers(replace(setting, goal=numbers())) == ROWS["functions"][1]


@pytest.mark.parametrize("name", ["functions", "pooled"])
def test_a_misread_network_is_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = reading._read
    monkeypatch.setattr(
        reading, "_read", lambda *facts: tuple(stage._replace(relu=False) for stage in read(*facts) or ())
    )
    assert plain_layers(here(ROWS[name][0]()).setting) is None
