"""Networks for places, pixels, texts and images: the way their gradients are taken, and sub-models of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from goal_worlds import CLASSES, LENGTH, WORDS, goal_world
from torch import Tensor, nn

from fedloom.engine.gradient.fastest import fastest_gradient
from fedloom.layout import flatten, layout_of
from fedloom.methods import METHODS
from fedloom.models import build
from neurons.equality import check
from worlds import World, assert_close, everything, hashed, play

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap runs attention client by client

# name, settings, goal of `goal_worlds` that it is tried on, how its gradients are taken
NETS: list[tuple[str, dict[str, Any], str, str]] = [
    ("char-conv", {"width": 8}, "next-token", "stacked"),
    ("char-conv", {"width": 4, "layers": 1}, "tokens", "stacked"),
    ("char-gru", {"width": 8}, "next-token", "one by one"),
    ("char-gru", {"width": 4, "layers": 2}, "tokens-per-token", "one by one"),
    ("fcn", {"width": 4}, "pixels", "stacked"),
    ("fcn", {}, "pixels-per-pixel", "stacked"),
    ("unet", {"width": 2, "norm": "none"}, "pixels", "stacked"),
    ("unet", {"width": 4}, "pixels", "stacked"),
    ("transformer", {"width": 8, "heads": 2, "depth": 1}, "classes-of-texts", "vmapped"),
    ("transformer", {"width": 8, "heads": 2, "depth": 1, "places": True}, "next-token", "vmapped"),
    ("lstm", {"width": 6}, "classes-of-texts", "one by one"),
    ("lstm", {"width": 6, "layers": 2, "places": True}, "next-token", "one by one"),
    ("gru", {"width": 6}, "classes-of-texts", "one by one"),
    ("vit", {"width": 8, "heads": 2, "depth": 1, "patch": 3}, "classes", "vmapped"),
    ("mobilenet", {"width": 2, "norm": "group"}, "classes", "stacked"),
]
each_net = pytest.mark.parametrize(("name", "set_to", "case", "way"), NETS, ids=lambda value: str(value))


def world_of(name: str, set_to: dict[str, Any], case: str) -> World:
    """The tiny fleet with a named network in float64; images of 6x6 are padded to 8x8 or 16x16."""
    here = goal_world(case, torch.float64)
    x, y = here.data
    if name == "unet":
        x, y = nn.functional.pad(x, (0, 2, 0, 2)), nn.functional.pad(y, (0, 2, 0, 2), value=255)
    if name == "mobilenet":  # it halves an image three times
        x = nn.functional.pad(x, (5, 5, 5, 5))
    words = 0 if x.is_floating_point() else WORDS
    outputs = WORDS if case == "next-token" else CLASSES
    module = hashed(build(name, tuple(x.shape[1:]), outputs, words, **set_to)).double()
    layout = layout_of(module)
    setting = replace(here.setting, module=module, layout=layout, example=x[:2])
    return World(setting, here.data._replace(x=x, y=y), here.shards, flatten(module, layout))


def test_batch_norm_of_a_mobilenet_is_stacked():
    """Tried on one batch: over rounds of such small batches it multiplies differences in last bits by a million."""
    here = world_of("mobilenet", {"width": 2}, "classes")
    assert fastest_gradient(here.setting, here.data).gradient.kind == "stacked"


@each_net
def test_how_gradients_are_taken(name, set_to, case, way):
    here = world_of(name, set_to, case)
    assert fastest_gradient(here.setting, here.data).gradient.kind == way


@each_net
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_loop_equals_local(name, set_to, case, way, method):
    here, made = world_of(name, set_to, case), METHODS[method]()
    assert_close(everything(play(here, made, here.local(made))), everything(play(here, made, here.loop(made))), 1e-8)


@pytest.mark.parametrize(
    ("name", "set_to", "case", "way"), [net for net in NETS if net[0] in ("char-conv", "fcn", "unet")]
)
@pytest.mark.parametrize("method", ["fjord", "fedspu"])
def test_loop_equals_local_with_sub_models(name, set_to, case, way, method):
    here, made = world_of(name, set_to, case), METHODS[method]()
    assert_close(everything(play(here, made, here.local(made))), everything(play(here, made, here.loop(made))), 1e-8)


def texts(count: int = 3) -> Tensor:
    """Random words."""
    return torch.randint(1, WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "shape", "set_to"),
    [
        ("char-conv", (LENGTH,), {"width": 6}),
        ("fcn", (2, 7, 5), {"width": 5}),
        ("unet", (1, 8, 12), {"width": 3, "norm": "none"}),
        ("unet", (1, 8, 12), {"width": 3}),
        ("mobilenet", (1, 16, 16), {"width": 3}),
    ],
)
def test_sub_models_equal_masked_models(name, shape, set_to, seed):
    torch.manual_seed(seed)
    x = texts() if len(shape) == 1 else torch.randn(3, *shape)
    check(build(name, shape, 4, WORDS if len(shape) == 1 else 0, **set_to), (x,), seed)
