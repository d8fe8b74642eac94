"""The first convolution and its pooling as one step: torch's numbers and its choice among equals, where it may be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from fedloom.engine.cpu.tiles import ConvPool, tiled_front
from torch import nn

from fedloom.core.types import Batch, Examples
from fedloom.engine.gradient.plain import PlainGradient
from fedloom.engine.gradient.stacked import StackedGradient
from worlds import CLASSES, assert_close, world_of

BATCH = 5


@pytest.mark.parametrize("size", [(3, 3), (6, 4), (7, 9), (200, 190)])
@pytest.mark.parametrize(("kernel", "padding"), [((3, 3), (1, 1)), ((2, 1), (0, 1)), ((1, 2), (2, 0))])
@pytest.mark.parametrize(("clients", "channels"), [(1, 4), (1, 9), (3, 2), (2, 12)])
@pytest.mark.parametrize("bias", [True, False])
def test_step_is_torchs(
    size: tuple[int, int], kernel: tuple[int, int], padding: tuple[int, int], clients: int, channels: int, bias: bool
) -> None:
    """Of whole numbers, so that windows have several largest ones."""
    draw = torch.Generator().manual_seed(1)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randint(-2, 3, shape, generator=draw).double()

    x = numbers(clients * BATCH, 3, *size)
    w, b = numbers(clients, channels, 3, *kernel).requires_grad_(), numbers(clients, channels).requires_grad_()
    own = (w, b) if clients > 1 else (w[0], b[0])
    ours = ConvPool.apply(x, own[0], own[1] if bias else None, padding)
    pairs = zip(x.chunk(clients), w, b)
    theirs = torch.cat(
        [F.max_pool2d(F.conv2d(one, each, off if bias else None, 1, padding), 2) for one, each, off in pairs]
    )
    assert torch.equal(ours, theirs)
    weight = numbers(*ours.shape)
    wanted = [w, b] if bias else [w]
    found = [torch.autograd.grad((out * weight).sum(), wanted, retain_graph=True) for out in (ours, theirs)]
    for one, other in zip(*found):
        assert torch.equal(one, other)


def network(*front: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*front, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES))


JOINED: dict[str, Callable[[], nn.Module]] = {
    "relu first": lambda: network(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2)),
    "pool first": lambda: network(nn.Conv2d(2, 4, 3, padding=2, bias=False), nn.MaxPool2d((2, 2)), nn.ReLU()),
}
APART: dict[str, Callable[[], nn.Module]] = {
    "stride": lambda: network(nn.Conv2d(2, 4, 3, stride=2), nn.MaxPool2d(2)),
    "dilation": lambda: network(nn.Conv2d(2, 4, 2, dilation=2), nn.MaxPool2d(2)),
    "groups": lambda: network(nn.Conv2d(2, 4, 3, groups=2), nn.MaxPool2d(2)),
    "overlap": lambda: network(nn.Conv2d(2, 4, 3), nn.MaxPool2d(3, stride=2)),
    "rounded up": lambda: network(nn.Conv2d(2, 4, 3), nn.MaxPool2d(2, ceil_mode=True)),
    "padded pool": lambda: network(nn.Conv2d(2, 4, 3), nn.MaxPool2d(2, padding=1)),
    "norm": lambda: network(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2)),
    "no pool": lambda: network(nn.Conv2d(2, 4, 3)),
    "not first": lambda: network(nn.AvgPool2d(1), nn.Conv2d(2, 4, 3), nn.MaxPool2d(2)),
}


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("name", [*JOINED, *APART])
def test_descent_is_plain_pytorchs(name: str, clients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = (torch.arange(24 * 2 * 7 * 8) * 0.7).sin().double().view(24, 2, 7, 8)
    place = world_of(
        (JOINED | APART)[name](), Examples(x, torch.arange(24) % CLASSES), torch.arange(24).split(8), torch.float64
    )
    way = StackedGradient(place.setting)
    calls: list[int] = []
    step = ConvPool.forward
    monkeypatch.setattr(ConvPool, "forward", staticmethod(lambda *args: calls.append(1) or step(*args)))
    at = torch.arange(clients * BATCH).view(clients, BATCH)
    batches = [
        Batch(place.data.x[rows], place.data.y[rows], torch.full((clients, BATCH), 1 / BATCH), torch.arange(clients))
        for rows in (at, at + 3)
    ]
    first = place.model.repeat(clients, 1)
    ours, theirs = (one.descend(first, iter(batches), 0.1, 0.98) for one in (way, PlainGradient(place.setting)))
    assert theirs is not None
    assert_close({"weights": ours[0], "losses": ours[1]}, {"weights": theirs[0], "losses": theirs[1]}, 1e-9)
    assert len(calls) == (2 if name in JOINED else 0)


def test_what_is_read_elsewhere_too_is_not_joined() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.pool = nn.Conv2d(2, 4, 3), nn.MaxPool2d(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.conv(x)
            return self.pool(x).mean((2, 3)) + x.mean((2, 3))

    module = Both()
    assert tiled_front(torch.fx.symbolic_trace(module).graph, module, frozenset({"conv"})) is None
