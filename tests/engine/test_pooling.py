"""Pooling and lone clients take ways of their own: on tiny images and with ties they still agree with plain PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from fedloom.client import Examples
from fedloom.engine.plain import PlainGradient
from fedloom.engine.pooling import halved
from fedloom.engine.stacked import StackedGradient
from fedloom.types import Batch
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


NETWORKS = {"pools": pools, "both": Both}


def here(name: str, channels: int, size: tuple[int, int]) -> World:
    """The network on images of whole numbers."""
    x = torch.arange(24 * channels * size[0] * size[1]).float().mul(7).remainder(3).view(24, channels, *size)
    examples = Examples(x, torch.arange(24) % CLASSES)
    return world_of(NETWORKS[name](channels), examples, torch.arange(24).split(8), torch.float32)


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (6, 5)])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("clients", [3, 1])
@pytest.mark.parametrize("name", NETWORKS)
def test_steps_agree_with_plain_pytorch(name: str, clients: int, channels: int, size: tuple[int, int]) -> None:
    place = here(name, channels, size)
    rows = torch.arange(clients * BATCH).view(clients, BATCH)
    weight = torch.full((clients, BATCH), 1 / BATCH)
    batches = [Batch(place.data.x[at], place.data.y[at], weight, torch.arange(clients)) for at in (rows, rows + 5)]
    first = place.model.repeat(clients, 1)
    ours, theirs = (
        way.descend(first, iter(batches), 0.1, 0.98)
        for way in (StackedGradient(place.setting), PlainGradient(place.setting))
    )
    assert ours is not None
    assert theirs is not None
    assert_close({"weights": ours[0], "losses": ours[1]}, {"weights": theirs[0], "losses": theirs[1]}, 1e-5)


@pytest.mark.parametrize("size", [(2, 2), (4, 6), (5, 7), (2, 9)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_halving_is_torchs_pooling(size: tuple[int, int], dtype: torch.dtype) -> None:
    x = (torch.arange(6 * 3 * size[0] * size[1]) * 7 % 11 // 3).to(dtype).view(6, 3, *size)
    x[1, 1, 0, 1] = torch.nan
    assert torch.equal(halved(x).nan_to_num(99), F.max_pool2d(x, 2).nan_to_num(99))


@pytest.mark.parametrize(("name", "moved"), [("pools", True), ("both", False)])
def test_relu_comes_after_pooling_where_nobody_else_reads(name: str, moved: bool) -> None:
    place = here(name, 3, (6, 5))
    layers = dict(place.setting.module.named_modules())
    nodes = StackedGradient(place.setting)._network.graph.nodes
    kinds = [type(layers[str(node.target)]) for node in nodes if node.op == "call_module"]
    assert (kinds.index(nn.MaxPool2d) < kinds.index(nn.ReLU)) == moved


class Viewed(nn.Module):
    """Asks for a view that only the plain order allows."""

    def __init__(self, layers: nn.Module, numbers: int) -> None:
        super().__init__()
        self.layers, self.out = layers, nn.Linear(numbers, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(x)
        return self.out(x.view(x.size(0), -1))


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(3, 9), st.integers(3, 9)),
    st.lists(st.integers(1, 5), min_size=3, max_size=3),
    st.lists(st.sampled_from([(1, 1, 0), (2, 1, 0), (3, 1, 1), (3, 2, 1), (4, 1, 2)]), min_size=2, max_size=2),
    st.lists(st.sampled_from([None, (1, 1, 0), (2, 1, 0), (2, 2, 1), (3, 2, 1)]), min_size=2, max_size=2),
    st.booleans(),
)
def test_a_lone_clients_images_in_any_order(
    size: tuple[int, int],
    channels: list[int],
    kernels: list[tuple[int, int, int]],
    pools: list[tuple[int, int, int] | None],
    viewed: bool,
) -> None:
    """Channels first or last, down to images of one place."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for wide, now, kernel, pool in zip(channels, channels[1:], kernels, pools):
        layers += [nn.Conv2d(wide, now, kernel[0], *kernel[1:]), nn.ReLU()]
        layers += [] if pool is None else [nn.MaxPool2d(*pool)]
    x = (torch.arange(12 * channels[0] * size[0] * size[1]) * 0.37).sin().view(12, channels[0], *size)
    front = nn.Sequential(*layers)
    try:
        numbers = front(x[:1]).numel()
    except RuntimeError:  # kernels larger than what is left
        return
    network = Viewed(front, numbers) if viewed else nn.Sequential(front, nn.Flatten(), nn.Linear(numbers, CLASSES))
    place = world_of(network, Examples(x, torch.arange(12) % CLASSES), torch.arange(12).split(4), torch.float32)
    weight = torch.full((1, 5), 0.2)
    batches = [Batch(x[None, at : at + 5], place.data.y[None, at : at + 5], weight, torch.zeros(1)) for at in (0, 6)]
    ways = (StackedGradient(place.setting), PlainGradient(place.setting))
    ours, theirs = (way.descend(place.model[None], iter(batches), 0.1, 0.98) for way in ways)
    assert ours is not None
    assert theirs is not None
    assert_close({"weights": ours[0], "losses": ours[1]}, {"weights": theirs[0], "losses": theirs[1]}, 1e-5)
