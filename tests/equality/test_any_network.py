"""Attention, recurrent layers, in-place sums and tied weights under methods that cut: engines agree."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.core.types import Examples
from fedloom.models.attention import transformer, vit
from fedloom.models.mobilenet import mobilenet
from fedloom.models.recurrent import gru, lstm
from pieces import CLASSES, WORDS
from worlds import METHODS, World, assert_close, everything, play, states_of, world_of

SIZES = (10, 4, 12, 6, 5, 16, 11, 10)  # no batch of one or two, which statistics of small images blow up
SIDE, LENGTH = 16, 6


class InPlace(nn.Module):
    """Residual blocks that add and rectify in place, as hand-written ResNets do."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.inner = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))
        self.down = nn.Conv2d(width, 2 * width, 1, stride=2)
        self.out = nn.Linear(2 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Scores [n, classes] of images."""
        x = F.relu_(self.norm(self.stem(x)))
        for conv, norm in zip(self.inner, self.norms):
            y = norm(conv(x))
            y += x
            x = F.relu_(y)
        scores: Tensor = self.out(self.down(x).mean((2, 3)))
        return scores


class Tied(nn.Module):
    """The words' vectors score the words again; what is classified is a mix of those scores."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)
        self.head = nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.out = nn.Linear(WORDS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Scores [n, classes] of texts."""
        x = self.words(x)
        x = x + self.outer(F.gelu(self.inner(x)))
        scores: Tensor = self.out(self.head(x).mean(1))
        return scores


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "vit": lambda: vit((1, SIDE, SIDE), CLASSES, width=8, depth=2, heads=4, patch=8),
    "transformer": lambda: transformer((LENGTH,), CLASSES, WORDS, width=8, depth=1, heads=4),
    "lstm": lambda: lstm((LENGTH,), CLASSES, WORDS, width=6, layers=2),
    "gru": lambda: gru((LENGTH,), CLASSES, WORDS, width=6, layers=1),
    "mobilenet": lambda: mobilenet((1, SIDE, SIDE), CLASSES, width=2),
    "in-place": InPlace,
    "tied": Tied,
}
TEXT = ("transformer", "lstm", "gru", "tied")
NAMES = ("fedavg", "fjord", "heterofl", "fedspu", "feddd", "safari", "ra-fed", "loom")
# In float64, since they blow up rounding: statistics of few numbers one after another a million times, and HeteroFL's
# weights, divided by shares, times attention's a thousand times. In float64 all agree to 1e-9.
EXACT = {("mobilenet", name) for name in NAMES} | {("vit", "heterofl"), ("transformer", "heterofl")}
CUTTING = ("fjord", "heterofl", "loom")


def a_world(network: str, name: str) -> World:
    """A few clients with texts or images, drawn by hashing."""
    chance, n = Chance(11, 0), torch.arange(sum(SIZES))
    words = (chance.uniform("words", n[:, None], torch.arange(LENGTH)) * WORDS).long()
    pixels = chance.uniform("pixels", n[:, None, None, None], torch.arange(SIDE * SIDE).view(1, SIDE, SIDE)) * 4 - 2
    y = (chance.uniform("classes", n) * CLASSES).long()
    dtype = torch.float64 if (network, name) in EXACT else torch.float32
    x = words if network in TEXT else pixels.to(dtype)
    return world_of(NETWORKS[network](), Examples(x, y), n.split(list(SIZES)), dtype)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("network", NETWORKS)
def test_loop_equals_local(network: str, name: str) -> None:
    here, method = a_world(network, name), dict(METHODS)[name]()
    loop, local = here.loop(method), here.local(method)
    slow, fast = play(here, method, loop), play(here, method, local)
    assert_close(everything(fast), everything(slow), 1e-5)
    ids = local.clients.states.known().tolist()
    assert_close(states_of(local, ids, here.model), states_of(loop, ids, here.model), 5e-5)
    for engine in (local, loop):
        engine.clients.own_test = here.data, here.shards
    ours, right = local.personal(fast.model), loop.personal(slow.model)  # how many of a few examples are right
    assert ours is not None
    assert right is not None
    assert torch.equal(ours, right)


@pytest.mark.parametrize("name", CUTTING)
@pytest.mark.parametrize("network", NETWORKS)
def test_smaller_networks_equal_masked_ones(network: str, name: str) -> None:
    here, method = a_world(network, name), dict(METHODS)[name]()
    sliced, masked = here.local(method), here.local(method, sliced=False)
    assert_close(everything(play(here, method, sliced)), everything(play(here, method, masked)), 1e-5)
