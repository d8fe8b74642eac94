"""Layers by words, on networks of every kind."""

from __future__ import annotations

import logging
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

from fedloom.errors import BadExperiment
from fedloom.layout import layout_of
from fedloom.models import build
from fedloom.neurons.layers import Layers, complement

NETS: list[tuple[str, tuple[int, ...], int]] = [
    ("mlp", (16,), 0),
    ("cnn-mcmahan", (1, 28, 28), 0),
    ("resnet20", (3, 16, 16), 0),
    ("spu-cifar", (3, 32, 32), 0),
    ("lstm", (9, 20), 0),
    ("gru", (8,), 30),
    ("vit", (3, 16, 16), 0),
    ("transformer", (8,), 30),
    ("mobilenet", (3, 16, 16), 0),
    ("unet", (3, 16, 16), 0),
]


def layers(module: nn.Module, example: Tensor) -> Layers:
    """The layers of a network."""
    return Layers(module, example, layout_of(module))


def named(net: nn.Module, found: Layers, words: str) -> set[str]:
    """The tensors whose numbers are all meant; no tensor is meant in part."""
    layout, mask = layout_of(net), found.numbers(words)
    pieces = dict(zip(layout.names, mask.split(layout.sizes)))
    assert all(bool(piece.all()) or not bool(piece.any()) for piece in pieces.values())
    return {name for name, piece in pieces.items() if piece.all()}


@pytest.mark.parametrize(("name", "shape", "words"), NETS, ids=[net[0] for net in NETS])
def test_the_head_of_every_network(name: str, shape: tuple[int, ...], words: int) -> None:
    net = build(name, shape, 5, words)
    example = torch.ones((2, *shape), dtype=torch.int64) if words else torch.randn(2, *shape)
    found = layers(net, example)
    assert found.heads == ["output"]
    assert named(net, found, "head") == named(net, found, "last:1") == {"output.weight", "output.bias"}
    assert torch.equal(found.numbers("body"), ~found.numbers("head"))
    assert torch.equal(found.numbers(complement("head+biases-output")), ~found.numbers("head+biases-output"))
    assert found.numbers("all").all()
    assert not found.numbers("none").any()


class Odd(nn.Module):
    """Layers are not used in the order in which they are made."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.skipped, self.first = nn.Linear(6, 3, bias=False), nn.Linear(4, 6), nn.Linear(4, 6)
        self.norm, self.scale = nn.BatchNorm1d(6), nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        """`skipped` is not used."""
        out: Tensor = self.last(torch.relu(self.norm(self.first(x)) * self.scale))
        return out


def test_order_is_that_of_use(caplog: pytest.LogCaptureFixture) -> None:
    net = Odd()
    with caplog.at_level(logging.WARNING, logger="fedloom"):
        found = layers(net, torch.randn(2, 4))
    assert "layers skipped: no use of them was seen" in caplog.text
    assert found.order == ["skipped", "first", "norm", "", "last"]
    norm = {"norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"}
    assert named(net, found, "last:2") == {"last.weight", "first.weight", "first.bias", "scale"} | norm
    assert named(net, found, "norms") == named(net, found, "norm.*") == norm
    assert named(net, found, "first:1") == {"skipped.weight", "skipped.bias"}
    assert named(net, found, "*.weight-head+scale") == {"skipped.weight", "first.weight", "norm.weight", "scale"}
    assert named(net, found, "biases") == {"skipped.bias", "first.bias", "norm.bias"}
    assert named(net, found, "[ln]*[!s]") == {"last.weight"} | norm


def test_layers_within_layers_and_tied_tensors() -> None:
    inner = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    net = nn.Sequential(OrderedDict(body=inner, a=nn.Linear(4, 4, bias=False), b=nn.Linear(4, 4)))
    net.b.weight = net.a.weight
    found = layers(net, torch.randn(2, 4))
    assert named(net, found, "body.*") == {"body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"}
    assert named(net, found, "b") == {"a.weight", "b.bias"}
    assert named(net, found, "norms:all") == {"body.1.weight", "body.1.bias"}
    assert not found.numbers("norms").any()


def test_two_heads() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.left, self.right = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.relu(self.body(x))
            return self.left(hidden) + self.right(hidden).tanh()

    assert sorted(layers(Two(), torch.randn(2, 4)).heads) == ["left", "right"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("fc9", r"'fc9' names no layer or tensor of this network; its layers are: 0, 2\."),
        ("last:2", r"'last:2' takes a number of layers from 1 to 1"),
        ("last:x", r"takes a number of layers"),
        ("head+", r"layers are 'head\+'"),
    ],
)
def test_words_that_name_nothing(words: str, why: str) -> None:
    found = layers(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(2, 4))
    with pytest.raises(BadExperiment, match=why):
        found.numbers(words)
    for none in ("all", "norms"):
        with pytest.raises(BadExperiment, match=f"head is '{none}', which is (every|no) layer"):
            found.some(none, "head")
    assert complement("a-b[1-3]+c") == "all-a+b[1-3]-c"


@pytest.mark.parametrize("words", ["head", "body", "all-head"])
def test_one_layer_has_no_body(words: str) -> None:
    with pytest.raises(BadExperiment, match="the head is every layer of this network"):
        layers(nn.Linear(4, 2), torch.randn(2, 4)).numbers(words)
