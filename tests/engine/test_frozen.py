"""Frozen neurons: leaving out the gradients of what does not move equals computing and dropping them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedloom.core.optimiser import Adam, Optimiser, Sgd
from fedloom.core.types import Batch, Examples
from fedloom.engine.gradient.frozen import freeze
from fedloom.engine.gradient.plain import PlainGradient
from fedloom.engine.gradient.stacked import StackedGradient
from fedloom.method import Method
from fedloom.models import build
from fedloom.parts.allocate.tiers import Tiers
from fedloom.parts.local.chain import Chain
from fedloom.parts.local.keep_own import KeepOwn
from fedloom.parts.local.prox import Prox
from fedloom.parts.mask.ranked import Ranked
from worlds import CLASSES, SIZES, World, assert_close, assert_identical, play, small, states_of, world, world_of

FROZEN = small(Method(allocate=Tiers((0.2, 0.6, 1.0)), mask=Ranked("random"), local=KeepOwn(freeze=True)))

OPTIMISERS: dict[str, Optimiser] = {
    "plain": Sgd(rate=0.1),
    "decay": Sgd(rate=0.1, weight_decay=0.05),
    "heavy": Sgd(rate=0.05, momentum=0.9, weight_decay=0.01, clip=1.0),
    "kept": Sgd(rate=0.05, momentum=0.9, fresh=False),
    "adam": Adam(rate=0.01, eps=1e-3),
}


class Twice(nn.Module):
    """A layer that is used twice, a depthwise and a grouped convolution: their gradients are computed in full."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.depth = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.norm, self.twice, self.out = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.depth(self.enter(x))))
        x = x + torch.tanh(self.twice(torch.tanh(self.twice(x))))
        return self.out(x.mean((2, 3)))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(72, 10), nn.ReLU(), nn.Linear(10, 8, bias=False), nn.Tanh(), nn.Linear(8, CLASSES)
    ),
    "chain": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(72, 10), nn.ReLU(), nn.Linear(10, 8, bias=False), nn.Linear(8, 9), nn.ReLU(),
        nn.Linear(9, CLASSES),
    ),
    "cnn": lambda: nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(5, 6, 2, stride=1), nn.ReLU(), nn.Flatten(), nn.Linear(24, 7), nn.ReLU(), nn.Linear(7, CLASSES),
    ),
    "last": lambda: nn.Sequential(  # 4, 12 or all 20 channels, which lie last
        nn.Conv2d(2, 20, 3, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 20, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(80, CLASSES),
    ),
    "flat": lambda: nn.Sequential(
        nn.Conv2d(2, 5, 3), nn.ReLU(inplace=True), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(20, 7), nn.Linear(7, CLASSES),
    ),
    "normed": lambda: nn.Sequential(
        nn.Conv2d(2, 5, 3, bias=False), nn.BatchNorm2d(5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(20, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, CLASSES),
    ),
    "twice": Twice,
    "resnet20": lambda: build("resnet20", (2, 6, 6), CLASSES, norm="group"),
}  # fmt: skip


@cache
def colour(network: str, dtype: torch.dtype = torch.float32) -> World:
    """The world's images in two colours, so that convolutions run client by client."""
    grey = world("cnn", dtype)
    x = torch.cat((grey.data.x, grey.data.x.flip(0)), 1)
    clients = torch.arange(sum(SIZES)).split(list(SIZES))
    return world_of(NETWORKS[network](), Examples(x, grey.data.y), clients, dtype)


def frozen_equals_masked(here: World, method: Method, tolerance: float, rounds: int = 2) -> None:
    """Models, what came up, and all that the clients remember."""
    engines = here.local(method), here.local(method, sliced=False)
    ours, theirs = (play(here, method, engine, rounds) for engine in engines)
    for number in range(rounds):
        pairs = ours.replies[number], theirs.replies[number]
        reports = [{"params": r.params, "loss": r.report["loss"], "model": m.models[number]} for r, m in
                   zip(pairs, (ours, theirs))]  # fmt: skip
        assert_close(*reports, tolerance)
    ids = sorted({int(i) for reply in ours.replies for i in reply.ids})
    assert_close(*(states_of(engine, ids, here.model) for engine in engines), tolerance)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clients each frozen bucket has had."""
    seen: list[int] = []
    freezing = StackedGradient.freezing

    def noting(self: StackedGradient, keep: Tensor, mask: Tensor) -> StackedGradient:
        seen.append(len(keep))
        return freezing(self, keep, mask)

    monkeypatch.setattr(StackedGradient, "freezing", noting)
    return seen


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("network", [name for name in NETWORKS if name != "resnet20"])
def test_frozen_equals_masked(network: str, optimiser: str, calls: list[int]) -> None:
    frozen_equals_masked(
        colour(network), replace(FROZEN, optimiser=OPTIMISERS[optimiser]), 1e-6, rounds=1
    )  # the two agree to 1e-6 a round
    assert sum(calls) == 8  # all clients of the round, of one engine only
    assert len(calls) > 2  # in buckets


@pytest.mark.parametrize("network", ["mlp", "chain", "cnn", "normed", "twice"])
@pytest.mark.parametrize("optimiser", ["decay", "heavy", "adam"])
def test_to_the_tenth_digit(network: str, optimiser: str) -> None:
    method = replace(FROZEN, optimiser=OPTIMISERS[optimiser])
    frozen_equals_masked(colour(network, torch.float64), method, 1e-10)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-10)])
@pytest.mark.parametrize("optimiser", ["plain", "heavy", "adam"])
def test_residual_network(optimiser: str, dtype: torch.dtype, tolerance: float) -> None:
    method = replace(FROZEN, optimiser=replace(OPTIMISERS[optimiser], rate=0.01))
    frozen_equals_masked(colour("resnet20", dtype), method, tolerance, rounds=1)


@pytest.mark.parametrize("network", ["cnn", "dropout", "text"])
def test_grey_images_dropout_and_words(network: str) -> None:
    frozen_equals_masked(world(network), FROZEN, 1e-6)


def test_with_a_rule_that_corrects() -> None:
    frozen_equals_masked(colour("cnn"), replace(FROZEN, local=Chain((KeepOwn(freeze=True), Prox(0.1)))), 1e-6)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("optimiser", ["decay", "kept"])
def test_what_is_frozen_stays(network: str, optimiser: str) -> None:
    """To the last bit, running statistics too."""
    here, method = colour(network), replace(FROZEN, optimiser=OPTIMISERS[optimiser])
    engine = here.local(method)
    run = play(here, method, engine, rounds=1)
    ids = run.replies[0].ids.tolist()
    mask = run.tasks[0].mask
    assert mask is not None
    assert not mask.all()
    own = states_of(engine, ids, here.model)["own"]
    assert torch.equal(own[~mask], here.model.expand_as(own)[~mask])
    moved = (own != here.model) & mask
    assert moved.any(1).all()


def test_nothing_frozen_is_no_freezing(calls: list[int]) -> None:
    here = colour("normed")
    shared = {"allocate": Tiers((1.0,)), "mask": Ranked("random")}
    runs = [
        play(here, method, here.local(method))
        for method in (replace(FROZEN, **shared), replace(FROZEN, **shared, local=KeepOwn()))
    ]
    assert_identical({"model": runs[0].model}, {"model": runs[1].model})
    assert not calls


def test_all_neurons_kept_freeze_nothing() -> None:
    here = colour("cnn")
    neurons = here.setting.neurons
    keep = torch.ones(2, neurons.size, dtype=torch.bool)
    assert freeze(neurons, ["0", "3"], keep, neurons.expand(keep)) is None


@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_work_is_really_saved(network: str) -> None:
    """The weights' gradients cost as much as the part that moves."""
    here, batch = colour(network), 6
    neurons, clients = here.setting.neurons, 2
    scores = torch.arange(clients * neurons.size).view(clients, -1).sin()
    keep = neurons.cut(scores, 0.5)
    whole = StackedGradient(here.setting)
    part = whole.freezing(keep, neurons.expand(keep))
    x, y = (t[: clients * batch].unflatten(0, (clients, batch)) for t in here.data)
    examples = Batch(x, y, torch.full((clients, batch), 1 / batch), torch.zeros(clients, dtype=torch.int64))
    counts = []
    for gradient in (whole, part):
        with FlopCounterMode(display=False) as counter:
            gradient(here.model.repeat(clients, 1), examples)
        counts.append(counter.get_total_flops())
    every = torch.ones_like(keep)
    saved = batch * int((neurons.flops(every) - neurons.flops(keep)).sum())
    assert counts[0] - counts[1] == saved
    assert saved > 0.15 * counts[0]


# ---- linear layers in a row, of any size, without masks: against every gradient in full


def linear_layers(widths: list[int], biases: list[bool], relus: list[bool]) -> World:
    """Linear layers of these widths, with or without biases and ReLU, on made-up images."""
    sizes, layers = [12, *widths, CLASSES], [nn.Flatten()]  # type: list[int], list[nn.Module]
    for place, bias in enumerate(biases[: len(sizes) - 1]):
        layers.append(nn.Linear(sizes[place], sizes[place + 1], bias=bias))
        layers += [nn.ReLU()] if place < len(widths) and relus[place] else []
    x = (torch.arange(40 * 12) * 0.37).sin().double().view(40, 1, 3, 4)
    data = Examples(x, torch.arange(40) * 7 % CLASSES)
    return world_of(nn.Sequential(*layers), data, torch.arange(40).split(10), torch.float64)


def batches(place: World, active: list[int], width: int) -> list[Batch]:
    """A batch of each of the first so many clients for every step; the last client's is short."""
    found = []
    for step, now in enumerate(active):
        at = (torch.arange(now * width).view(now, width) + 3 * step) % len(place.data.y)
        real = torch.ones(now, width)
        real[-1, 1:] = 0
        found.append(Batch(place.data.x[at], place.data.y[at], real / real.sum(1, keepdim=True), at[:, 0]))
    return found


def by_hand(
    place: World, first: Tensor, feed: list[Batch], shrink: float, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Weights and losses: every gradient in full, and what is frozen put back."""
    now, total = first.clone(), first.new_zeros(len(first))
    for batch in feed:
        some = slice(len(batch.y))
        slopes, losses = PlainGradient(place.setting)(now[some].clone(), batch)
        moved = shrink * now[some] - 0.1 * slopes
        now[some] = moved if mask is None else torch.where(mask[some], moved, now[some])
        total[some] += losses
    return now, total


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(2, 9), max_size=3),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.integers(1, 5),
    st.sampled_from([1.0, 0.97]),
    st.none() | st.floats(0.1, 1.0),
    st.integers(0, 1000),
)
def test_linear_layers_of_any_size(
    widths: list[int], biases: list[bool], relus: list[bool], active: list[int], width: int, shrink: float,
    share: float | None, seed: int,
) -> None:  # fmt: skip
    place, active, mask = linear_layers(widths, biases, relus), sorted(active, reverse=True), None
    first, way = place.model.repeat(active[0], 1), StackedGradient(place.setting)
    first *= torch.linspace(1, 1.5, active[0])[:, None].double()
    if share is not None and widths:
        neurons = place.setting.neurons
        keep = neurons.cut(torch.rand(active[0], neurons.size, generator=torch.Generator().manual_seed(seed)), share)
        mask = neurons.expand(keep)
        way = way.freezing(keep, mask)
    feed = batches(place, active, width)
    last, losses = way.descent(first, iter(feed), 0.1, shrink)
    now, total = by_hand(place, first, feed, shrink, mask)
    assert_close({"weights": last, "losses": losses}, {"weights": now, "losses": total}, 1e-9)
    assert mask is None or torch.equal(last[~mask], first[~mask])


def test_no_neuron_kept_is_not_every_neuron() -> None:
    place = linear_layers([5, 4], [True] * 3, [True] * 2)
    neurons, first = place.setting.neurons, place.model[None]
    keep = torch.zeros(1, neurons.size, dtype=torch.bool)
    frozen = StackedGradient(place.setting).freezing(keep, neurons.expand(keep))
    last, _ = frozen.descent(first, iter(batches(place, [1], 4)), 0.1, 1.0)
    moved = place.setting.layout.split(last != first)
    assert [name for name, value in moved.items() if value.any()] == ["5.bias"]
