"""Networks that the C code for CPUs takes, on made-up examples, and its steps beside those of plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.core.goal import Goal, Transform
from fedloom.core.optimiser import Sgd
from fedloom.core.types import Examples
from fedloom.core.work import Work
from fedloom.engine.cpu import native, native_steps
from fedloom.engine.cpu.native.move import Moves
from fedloom.engine.feed import Feed
from fedloom.engine.gradient.plain import PlainGradient
from fedloom.engine.plain_layers import plain_layers
from fedloom.method import Method
from worlds import CLASSES, World, world_of

SHAPE = (2, 9, 7)
needs_compiler = pytest.mark.skipif(native.library() is None, reason="there is no C compiler that can be used")
METHOD = Method(optimiser=Sgd(rate=0.1), work=Work(epochs=1, batch=4))


def here(network: nn.Module, shape: tuple[int, ...] = SHAPE) -> World:
    """The network on made-up examples."""
    x = (torch.arange(40 * torch.Size(shape).numel()) * 0.37).sin().view(40, *shape)
    return world_of(network, Examples(x, torch.arange(40) * 7 % CLASSES), torch.arange(40).split(10))


def with_goal(place: World, goal: Goal, y: Tensor, transform: Transform | None = None) -> World:
    """The same examples with other targets, for another goal, and perhaps transformed."""
    setting = replace(place.setting, goal=goal, transform=transform)
    return place._replace(setting=setting, data=Examples(place.data.x, y.clone()))


def feed_of(place: World, sizes: list[int], batch: int, epochs: int = 1) -> Feed:
    """So many examples of every client, the first having most."""
    rows = place.shards.rows(torch.arange(len(sizes)), 10)[:, : sizes[0]]
    batches = Work(epochs=epochs, batch=batch).plan(torch.arange(len(sizes)), rows, sizes, Chance(3, 1))
    return Feed(place.data, batches, place.setting.goal, place.setting.transform)


def convs(*widths: int, kernel: int = 3, padding: int = 1, pool: bool = True, relu: bool = True, bias: bool = True,
          dense: tuple[int, ...] = (), outputs: int = CLASSES) -> nn.Sequential:  # fmt: skip
    """Convolutions of these widths, then dense layers."""
    channels, *size = SHAPE
    layers: list[nn.Module] = []
    for width in widths:
        layers.append(nn.Conv2d(channels, width, kernel, padding=padding, bias=bias))
        layers += [nn.ReLU()] if relu else []
        layers += [nn.MaxPool2d(2)] if pool else []
        size = [(one + 2 * padding - kernel + 1) // (2 if pool else 1) for one in size]
        channels = width
    inputs = channels * size[0] * size[1]
    layers.append(nn.Flatten())
    for width in dense:
        layers += [nn.Linear(inputs, width, bias=bias), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def by_hand(
    place: World, first: Tensor, feed: Feed, shrink: float = 1.0, momentum: float = 0.0, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same steps in plain PyTorch and in float64."""
    place.setting.module.double()
    now, speed, total = first.double(), torch.zeros_like(first).double(), torch.zeros(len(first)).double()
    for batch in feed:
        some = slice(len(batch.y))
        slopes, losses = PlainGradient(place.setting)(now[some].clone(), batch._replace(x=batch.x.double()))
        speed[some] = momentum * speed[some] + slopes + (1 - shrink) / 0.1 * now[some]
        moved = now[some] - 0.1 * speed[some]
        now[some] = moved if mask is None else torch.where(mask[some], moved, now[some])
        total[some] += losses
    place.setting.module.float()
    return now.float(), total.float()


def native_steps_of(
    place: World, first: Tensor, feed: Feed, shrink: float = 1.0, momentum: float = 0.0, keep: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The steps by the C code."""
    setting, layers = place.setting, plain_layers(place.setting)
    assert layers is not None
    assert setting.goal.head is not None
    moves = Moves(Sgd(rate=0.1, weight_decay=(1 - shrink) / 0.1, momentum=momentum), 0.1)
    facts = setting.layout, setting.goal.head, first, feed.data, feed.batches, moves
    parts = () if keep is None else (keep, setting.neurons)
    found = native_steps.descend_native(layers, *facts, *parts)
    assert found is not None
    return found


def unlike(place: World, clients: int) -> Tensor:
    """Different weights for everyone."""
    return place.model.repeat(clients, 1) * torch.linspace(1, 1.3, clients)[:, None]


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "pooled": lambda: convs(5, 9, dense=(13,)),
    "many channels": lambda: convs(20, 33),
    "not pooled": lambda: convs(4, 6, kernel=2, padding=0, pool=False, dense=(5, 6)),
    "no relu": lambda: convs(9, relu=False),
    "no bias": lambda: convs(7, bias=False, dense=(6,)),
    "large kernel": lambda: convs(3, 8, kernel=5, padding=2),
    "one convolution": lambda: convs(8, padding=0),
    "far padding": lambda: convs(3, padding=3),
    "dense": lambda: nn.Sequential(nn.Flatten(), nn.Linear(126, 17), nn.ReLU(), nn.Linear(17, CLASSES)),
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(126, CLASSES, bias=False)),
}
