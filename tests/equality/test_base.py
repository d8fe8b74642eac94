"""Frozen parameters and constants are no client's own: nothing sends them, averages them or changes a bit of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.engine.gradient.fastest import fastest_gradient
from fedloom.engine.protocol import Engine
from fedloom.layout import base_of
from fedloom.method import Method
from fedloom.parts.mask.share_layers import ShareLayers
from pieces import CLASSES, frozen
from worlds import (
    METHODS,
    SIZES,
    World,
    assert_close,
    assert_identical,
    every_method,
    everything,
    play,
    world,
    world_of,
)


def conv() -> nn.Sequential:
    """Convolutions, statistics and a hidden dense layer."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(27, 6), nn.ReLU(), nn.Linear(6, CLASSES),
    )  # fmt: skip


def grouped() -> nn.Sequential:
    """Layers with statistics within an example."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(),
        nn.Linear(144, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, CLASSES),
    )  # fmt: skip


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "first layer": lambda: frozen(conv(), "0"),
    "last layer": lambda: frozen(conv(), "7"),
    "all but the last": lambda: frozen(conv(), "0", "1", "5"),
    "weights of a norm": lambda: frozen(conv(), "1"),
    "some tensors of layers": lambda: frozen(conv(), "0.bias", "1.weight", "5.weight"),
    "other norms": lambda: frozen(grouped(), "0", "1", "4.bias", "5.bias"),
}
WAYS = ("fedavg", "scaffold", "scattered", "fjord", "heterofl", "federated-dropout-heavy")


@cache
def frozen_world(network: str) -> World:
    """The tiny fleet around a network with frozen parts."""
    parts = torch.arange(sum(SIZES)).split(list(SIZES))
    return world_of(NETWORKS[network](), world("cnn").data, parts)


def base(here: World) -> dict[str, Tensor]:
    """A copy of all that the vector leaves out."""
    return {name: value.clone() for name, value in base_of(here.setting.module, here.setting.layout).items()}


def check(here: World, method: Method, engines: tuple[Engine, Engine]) -> None:
    """Both engines agree, on finite numbers, and leave the base alone."""
    before = base(here)
    assert before
    fast, slow = (play(here, method, engine) for engine in engines)
    assert_identical(base(here), before)
    assert all(bool(value.isfinite().all()) for value in everything(fast).values() if value.is_floating_point())
    assert torch.equal(fast.model, here.model) == (method.mask == ShareLayers("none"))  # which shares nothing
    assert_close(everything(fast), everything(slow), 1e-5)
    for reply in fast.replies:
        assert reply.params.shape[1] == here.setting.layout.total


@every_method
def test_a_frozen_first_layer_stays_as_it_was(method: Method) -> None:
    here = frozen_world("first layer")
    check(here, method, (here.local(method), here.loop(method)))


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", WAYS)
def test_frozen_parts_stay_as_they_were(network: str, name: str) -> None:
    here, method = frozen_world(network), dict(METHODS)[name]()
    check(here, method, (here.local(method), here.loop(method)))


@pytest.mark.parametrize("network", NETWORKS)
def test_they_are_stacked_like_any_other(network: str) -> None:
    here = frozen_world(network)
    assert fastest_gradient(here.setting, here.data).gradient.kind == "stacked"


@pytest.mark.parametrize("network", NETWORKS)
def test_frozen_names_are_not_in_the_vector(network: str) -> None:
    here = frozen_world(network)
    trained = {name: p for name, p in here.setting.module.named_parameters() if p.requires_grad}
    assert set(here.setting.layout.parameters) == set(trained)
    assert here.setting.layout.trained == sum(p.numel() for p in trained.values())
    assert {axes.name for axes in here.setting.neurons.tensors} == set(here.setting.layout.names)


def test_neurons_with_frozen_numbers_are_fixed() -> None:
    assert frozen_world("first layer").setting.neurons.groups == ("5",)
    assert frozen_world("last layer").setting.neurons.groups == ("0",)
    assert frozen_world("all but the last").setting.neurons.groups == ()
    one, whole = (frozen_world("first layer").setting.neurons, world_of_all().setting.neurons)
    assert int(one.flops(torch.ones(one.size).bool())) == int(whole.flops(torch.ones(whole.size).bool()))


def world_of_all() -> World:
    """The network without frozen parts."""
    return world_of(conv(), world("cnn").data, torch.arange(sum(SIZES)).split(list(SIZES)))


class Constant(nn.Module):
    """A linear layer of buffers."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("weight", layer.weight.detach().clone())
        self.register_buffer("bias", layer.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """As `nn.Linear`."""
        return F.linear(x, self.weight, self.bias)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["fedavg", "fedavg-adam", "scaffold", "feddyn", "fedavg-heavy"])
def test_frozen_layers_equal_buffers_in_the_vector(name: str) -> None:
    """Both train the same numbers, although the buffers are sent and averaged."""
    parts = torch.arange(sum(SIZES)).split(list(SIZES))
    dense = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, CLASSES))
    ours = world_of(frozen(dense, "1"), world("mlp").data, parts)
    with_buffers = nn.Sequential(nn.Flatten(), Constant(dense[1]), *list(dense)[2:])  # type: ignore[arg-type]
    theirs = world_of(with_buffers, world("mlp").data, parts)
    trained, method = ours.setting.layout.trained, dict(METHODS)[name]()
    assert theirs.setting.layout.trained == trained == ours.setting.layout.total < theirs.setting.layout.total
    found, expected = play(ours, method, ours.local(method)), play(theirs, method, theirs.local(method))
    torch.testing.assert_close(found.model, expected.model[:trained], rtol=1e-6, atol=1e-6)
