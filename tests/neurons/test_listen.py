"""Attention and recurrent layers: masked = cut, counts as torch counts them, and what the groups are."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode

import fedloom
from fedloom.errors import BadModel
from fedloom.neurons.rules import OWN
from fedloom.neurons.trace import neuron_map
from neurons.attention_nets import (
    HEADS,
    IMAGES,
    NETS,
    PLACES,
    STYLES,
    TEXTS,
    WIDTH,
    Cosine,
    Shuffled,
    decoder,
    decoders,
    readers,
)
from neurons.equality import check
from neurons.nets import Apply, mlp

seeds = st.integers(0, 9999)


@pytest.mark.parametrize("name", NETS)
def test_masked_is_cut(name: str) -> None:
    make, example = NETS[name]
    for seed in range(2):
        torch.manual_seed(seed)
        check(make(), (example,), seed)


@settings(max_examples=10, deadline=None)
@given(net=decoders(), seed=seeds)
def test_any_way_to_write_a_decoder(net: nn.Module, seed: int) -> None:
    check(net, (TEXTS,), seed)


@settings(max_examples=6, deadline=None)
@given(net=readers(), seed=seeds)
def test_any_recurrent_network(net: nn.Module, seed: int) -> None:
    check(net, (TEXTS,), seed)


GROUPS = {
    "encoder": {"body.layers.0.self_attn": 3, "body.layers.0.linear1": 8, "body.layers.1.self_attn": 3,
                "body.layers.1.linear1": 8},
    "patches": {"attention": 3, "feed.up": 6},
    "lstm of two layers": {"words": 6, "layer.l0": 7, "layer.l1": 7},
    "cells": {"first": 7, "second": 6},
    "a learnt beginning": {"words": 6, "layer.l0": 7, "second": 5},
    "packed": {"words": 6, "layer": 7},
    "a cell from zeros": {"cell": 7},
    "convnext": {"1.feed.up": 6, "3.feed.up": 6},
    "windows": {"3.qkv": 2, "3.feed.up": 6, "4.qkv": 2, "4.feed.up": 6, "6.qkv": 4, "6.feed.up": 6},
}  # fmt: skip


@pytest.mark.parametrize("name", GROUPS)
def test_neurons_are_heads_and_units_and_the_stream_is_whole(name: str) -> None:
    make, example = NETS[name]
    found = neuron_map(make(), example)
    assert {group: found.widths[group] for group in found.groups} == GROUPS[name]
    assert found.across == ()
    assert found.note is None


@pytest.mark.parametrize("style", STYLES)
def test_heads_are_found_however_they_are_written(style: str) -> None:
    found = neuron_map(decoder(style, "by hand", "chunk", True), TEXTS)
    heads = {"attention.qkv": 3} if style in STYLES[:5] else {"attention.q": 2}
    assert {group: found.widths[group] for group in found.groups} == {**heads, "feed.up": 6}
    assert found.note is None


def test_words_say_what_neurons_are() -> None:
    patches, texts = neuron_map(NETS["patches"][0](), IMAGES), neuron_map(NETS["lstm"][0](), TEXTS)
    assert patches.words == {"attention": "heads", "feed.up": "units"}
    assert texts.words == {"words": "numbers of a word", "layer": "hidden units"}
    by_hand = neuron_map(decoder("chunk", "rms", "two", True), TEXTS)
    assert by_hand.words == {"attention.qkv": "heads", "feed.up": "units"}


def test_a_head_owns_its_rows_of_queries_keys_and_values() -> None:
    found = neuron_map(NETS["patches"][0](), IMAGES)
    keep = torch.ones(found.size, dtype=torch.bool)
    keep[1] = False
    size = WIDTH // HEADS
    masks = fedloom.layout_of(NETS["patches"][0]()).split(found.expand(keep))
    rows = torch.ones(3, HEADS, size, dtype=torch.bool)
    rows[:, 1] = False
    assert torch.equal(masks["attention.in_proj_weight"], rows.flatten()[:, None].expand(-1, WIDTH))
    assert torch.equal(masks["attention.out_proj.weight"], rows[0].flatten()[None].expand(WIDTH, -1))
    assert masks["token"].all()


def test_half_of_the_channels_may_be_one_neuron() -> None:
    """Each shuffle halves the neurons of the half that is passed on, until one is left."""
    blocks = [Shuffled(12) for _ in range(5)]
    net = nn.Sequential(nn.Conv2d(3, 12, 3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 3))
    found = neuron_map(net, IMAGES)
    assert found.note is None
    assert all(found.widths[f"{block}.branch.0"] == 6 for block in range(1, 6))
    for seed in range(2):
        check(net, (IMAGES,), seed)


def test_heads_that_compare_by_cosines() -> None:
    found = neuron_map(Cosine(), TEXTS)
    assert {group: found.widths[group] for group in found.groups} == {"qkv": 3, "far.0": 4}
    assert found.note is None


class Adapted(nn.Module):
    """A frozen layer, and two small ones beside it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.a, self.b = nn.Linear(inputs, 3, bias=False), nn.Linear(3, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * self.b(self.a(x))


def test_components_of_a_rank_are_neurons() -> None:
    net = nn.Sequential(Adapted(5, 6), nn.ReLU(), Adapted(6, 6), nn.ReLU(), nn.Linear(6, 3))
    found = neuron_map(net, torch.randn(2, 5))
    assert (found.widths, found.note) == ({"0.a": 3, "2.a": 3, "4": 3}, None)


class Graph(nn.Module):
    """Two layers, each after a product with the neighbours of all examples."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)
        self.register_buffer("near", torch.rand(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.near @ (self.near @ self.first(x)).relu())


def test_a_product_with_a_constant_leaves_neurons() -> None:
    x = torch.randn(4, 5)
    assert neuron_map(Graph(), x).widths == {"first": 6, "last": 3}
    found = neuron_map(Graph(), x)
    assert found.note is None


class Mixer(nn.Module):
    """Mixes places with a layer along them, and channels with another."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.head = nn.Embedding(20, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)
        self.along, self.back = nn.Linear(PLACES, 9), nn.Linear(9, PLACES)
        self.up, self.down = nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        x = x + self.back(self.along(self.norm(x).transpose(1, 2)).relu()).transpose(1, 2)
        return self.head((x + self.down(self.up(x).relu())).mean(1))


def test_a_mixer_has_units_along_both_axes() -> None:
    found = neuron_map(Mixer(), TEXTS)
    assert (found.widths, found.note) == ({"along": 9, "up": 8, "head": 3}, None)
    check(Mixer(), (TEXTS,), 0)


def test_a_weight_and_its_transpose() -> None:
    class Back(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.head = nn.Parameter(torch.rand(6, 5)), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(nn.functional.linear(x @ self.weight.t(), self.weight.t()).relu())

    x = torch.randn(2, 5)
    assert neuron_map(Back(), x).note is None
    check(Back(), (x,), 0)


def test_layers_of_one_lstm_keep_equally_many() -> None:
    found = neuron_map(NETS["lstm both ways, last"][0](), TEXTS)
    assert found.alike == (("layer.l0", "layer.l0_reverse", "layer.l1", "layer.l1_reverse"),)


def test_the_width_opens_when_asked() -> None:
    net = decoder("reshape", "layer", "none", False)
    assert "words" not in neuron_map(net, TEXTS).groups
    opened = neuron_map(net, TEXTS, width=True)
    assert opened.widths["words"] == WIDTH
    assert set(opened.across) == {"before", "between", "after"}


def test_products_of_attention_count() -> None:
    """By hand: two products of places x places x size for each head."""
    net = NETS["patches"][0]()
    found = neuron_map(net, IMAGES)
    whole, less = (torch.ones(found.size, dtype=torch.bool) for _ in range(2))
    less[0] = False
    weights = 2 * PLACES * 4 * (WIDTH // HEADS) * WIDTH  # rows of q, k, v and columns of the output
    products = 2 * 2 * PLACES * PLACES * (WIDTH // HEADS)
    assert int(found.flops(whole) - found.flops(less)) == weights + products


def test_a_base_that_is_frozen_is_never_cut() -> None:
    net = NETS["patches"][0]()
    net.attention.requires_grad_(False)
    assert neuron_map(net, IMAGES).groups == ("feed.up",)


class Half(nn.Module):
    """Swaps the halves of each pair of neurons, by code that nothing is known of."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.ifft(torch.fft.fft(x)).real


@pytest.fixture
def own_rules():
    before = dict(OWN)
    yield
    OWN.clear()
    OWN.update(before)


def test_a_rule_of_your_own_for_a_layer(own_rules) -> None:
    net = nn.Sequential(nn.Linear(2, 4), Half(), nn.Linear(4, 3))
    assert neuron_map(net, torch.randn(2, 2)).groups == ()

    @fedloom.neuron_rule(Half)
    def half(call):
        return call.ids(call.args[0])

    found = neuron_map(net, torch.randn(2, 2))
    assert (found.groups, found.note) == (("0",), None)


def test_a_rule_of_your_own_for_a_function(own_rules) -> None:
    net = nn.Sequential(nn.Linear(2, 4), Apply(torch.special.expit), nn.Linear(4, 3))
    assert "special_expit: it has no rule" in neuron_map(net, torch.randn(2, 2)).note
    fedloom.neuron_rule(torch.special.expit, like="relu")
    found = neuron_map(net, torch.randn(2, 2))
    assert (found.groups, found.note) == (("0",), None)


def test_a_wrong_rule_is_found_by_the_trial(own_rules) -> None:
    class Turned(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.fft(x).real

    net = nn.Sequential(nn.Linear(2, 4), Turned(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    fedloom.neuron_rule(Turned, like="relu")
    found = neuron_map(net, torch.randn(2, 2))
    assert found.groups == ("2",)
    assert "'0' (with half of its neurons cut it is not what it is with the half masked)" in found.note


def test_rules_are_given_for_something() -> None:
    with pytest.raises(BadModel, match="needs a function or the class of a layer; got 'relu'"):
        fedloom.neuron_rule("relu", like="relu")
    with pytest.raises(BadModel, match="did you mean 'softmax'"):
        fedloom.neuron_rule(Half, like="sofmax")


class Asserts(nn.Module):
    """A module whose calls another mode has taken: it cannot run while it is listened to."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp(2, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if _get_current_function_mode() is not None:
            raise RuntimeError("no modes, please")
        return self.inner(x)


def test_what_cannot_be_listened_to_is_kept_whole() -> None:
    found = neuron_map(Asserts(), torch.randn(2, 2))
    assert found.groups == ()
    assert int(found.flops(torch.ones(0, dtype=torch.bool))) == 2 * (2 * 4 + 4 * 3)
    assert found.note.startswith("Asserts: its code cannot be listened to: no modes, please. All its layers")
