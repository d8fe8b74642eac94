"""Pooling and lone clients take ways of their own: on tiny images and with ties they still agree with plain PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.types import Batch, Examples
from fedloom.engine.cpu.pooling import max_pool_by_two
from fedloom.engine.gradient.plain import PlainGradient
from fedloom.engine.gradient.products import ordered
from fedloom.engine.gradient.stacked import StackedGradient
from worlds import CLASSES, World, assert_close, world_of

BATCH = 4


class Both(nn.Module):
    """ReLU writes over what is pooled and what is read elsewhere."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enter, self.relu, self.pool = nn.Conv2d(channels, 4, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(1)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        pooled = self.pool(self.relu(x))
        return self.out(torch.cat((pooled.mean((2, 3)), x.mean((2, 3))), 1))


def pools(channels: int) -> nn.Module:
    """Windows that overlap, pad and round up; weights of one kind, so that windows hold equal maxima; unread inputs."""
    network = nn.Sequential(
        nn.Conv2d(channels, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, padding=1, stride=1),
        nn.Conv2d(5, 4, 1, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(2, padding=1, ceil_mode=True),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES),
    )  # fmt: skip
    for layer in (network[0], network[3]):
        nn.init.ones_(layer.weight)
    return network


def last(channels: int) -> nn.Module:
    """Convolutions of four and eight channels, which lie last; overlapping windows; one that no longer fits."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 8, 3, padding=2), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(8, 4, 2, stride=2, padding=2, bias=False), nn.MaxPool2d(2, stride=1), nn.ReLU(),
        nn.Conv2d(4, 6, 1), nn.Flatten(), nn.LazyLinear(CLASSES),
    )  # fmt: skip


NETWORKS = {"pools": pools, "both": Both}


def here(name: str, channels: int, size: tuple[int, int]) -> World:
    """The network on images of whole numbers."""
    x = torch.arange(24 * channels * size[0] * size[1]).float().mul(7).remainder(3).view(24, channels, *size)
    examples = Examples(x, torch.arange(24) % CLASSES)
    network = {**NETWORKS, "last": last}[name](channels)
    network(x[:2])  # gives lazy layers their sizes
    return world_of(network, examples, torch.arange(24).split(8), torch.float32)


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (6, 5)])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("clients", [3, 1])
@pytest.mark.parametrize("name", NETWORKS)
def test_steps_agree_with_plain_pytorch(name: str, clients: int, channels: int, size: tuple[int, int]) -> None:
    agree(name, clients, channels, size)


@pytest.mark.parametrize("size", [(8, 8), (9, 14), (16, 5)])
@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("clients", [3, 1])
def test_channels_last_agree_with_plain_pytorch(clients: int, channels: int, size: tuple[int, int]) -> None:
    agree("last", clients, channels, size)


def agree(name: str, clients: int, channels: int, size: tuple[int, int]) -> None:
    """Two steps as plain PyTorch takes them."""
    place = here(name, channels, size)
    rows = torch.arange(clients * BATCH).view(clients, BATCH)
    weight = torch.full((clients, BATCH), 1 / BATCH)
    batches = [Batch(place.data.x[at], place.data.y[at], weight, torch.arange(clients)) for at in (rows, rows + 5)]
    first = place.model.repeat(clients, 1)
    ours, theirs = (
        way.descent(first, iter(batches), 0.1, 0.98)
        for way in (StackedGradient(place.setting), PlainGradient(place.setting))
    )
    assert_close({"weights": ours[0], "losses": ours[1]}, {"weights": theirs[0], "losses": theirs[1]}, 1e-5)


@pytest.mark.parametrize(("inputs", "outputs", "size", "last"), [
    (4, 8, (4, 5), True), (16, 4, (8, 8), True), (2, 4, (8, 8), False), (3, 8, (8, 8), False), (6, 8, (8, 8), False),
    (4, 6, (8, 8), False), (8, 8, (3, 8), False),
])  # fmt: skip
def test_channels_lie_last_only_where_that_is_safe(
    inputs: int, outputs: int, size: tuple[int, int], last: bool
) -> None:
    """Never two or three: torch 2.13's gradient of the weight would write beside its memory."""
    w = torch.zeros(outputs, inputs, 3, 3)
    for given in (torch.contiguous_format, torch.channels_last):
        x = torch.rand(2, inputs, *size).contiguous(memory_format=given)
        assert torch.equal(ordered(x, w), x)
        assert ordered(x, w).is_contiguous(memory_format=torch.channels_last) == last
        assert ordered(x.double(), w.double()).is_contiguous()
        assert ordered(x, torch.zeros(outputs, 1, 3, 3)).is_contiguous()  # depthwise


@pytest.mark.parametrize("size", [(2, 2), (4, 6), (5, 7), (2, 9)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_halving_is_torchs_pooling(size: tuple[int, int], dtype: torch.dtype) -> None:
    x = (torch.arange(6 * 3 * size[0] * size[1]) * 7 % 11 // 3).to(dtype).view(6, 3, *size)
    x[1, 1, 0, 1] = torch.nan
    assert torch.equal(max_pool_by_two(x).nan_to_num(99), F.max_pool2d(x, 2).nan_to_num(99))


@pytest.mark.parametrize(("name", "moved"), [("pools", True), ("both", False)])
def test_relu_comes_after_pooling_where_nobody_else_reads(name: str, moved: bool) -> None:
    place = here(name, 3, (6, 5))
    layers = dict(place.setting.module.named_modules())
    nodes = StackedGradient(place.setting)._network.graph.nodes
    kinds = [type(layers[str(node.target)]) for node in nodes if node.op == "call_module"]
    assert (kinds.index(nn.MaxPool2d) < kinds.index(nn.ReLU)) == moved
