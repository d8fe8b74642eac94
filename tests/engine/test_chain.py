"""Chains of linear layers without autograd: the same steps as plain PyTorch takes, and only chains take them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.core.types import Batch, Examples
from fedloom.core.work import Work
from fedloom.engine.client import Feed
from fedloom.engine.cpu import chain
from fedloom.engine.gradient.fastest import fastest_gradient
from fedloom.engine.gradient.plain import PlainGradient
from fedloom.engine.gradient.stacked import StackedGradient
from worlds import CLASSES, World, assert_close, world_of


class Written(nn.Module):
    """A chain in functions instead of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(12, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(F.relu(self.one(torch.flatten(x, 1))))


class Again(Written):
    """A layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.mid = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.mid(self.mid(self.one(x.flatten(1)))))


class Around(Written):
    """What ReLU made is read twice."""

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.one(x.flatten(1)))
        return self.two(inner + inner)


def frozen_layer() -> nn.Module:
    network = mlp([5], [True, True], [True])
    network[1].requires_grad_(False)
    return network


def mlp(widths: list[int], biases: list[bool], relus: list[bool]) -> nn.Sequential:
    """Linear layers of these widths, with or without biases and ReLU."""
    torch.manual_seed(0)
    sizes, layers = [12, *widths, CLASSES], [nn.Flatten()]
    for place, bias in enumerate(biases[: len(sizes) - 1]):
        layers.append(nn.Linear(sizes[place], sizes[place + 1], bias=bias))
        layers += [nn.ReLU()] if place < len(widths) and relus[place] else []
    return nn.Sequential(*layers)


def here(network: nn.Module, dtype: torch.dtype = torch.float64) -> World:
    """The network on made-up images."""
    x = (torch.arange(40 * 12) * 0.37).sin().to(dtype).view(40, 1, 3, 4)
    return world_of(network, Examples(x, torch.arange(40) * 7 % CLASSES), torch.arange(40).split(10), dtype)


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
    place: World, first: Tensor, feed: list[Batch], shrink: float, momentum: float, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Weights and losses: every gradient in full, and what is frozen put back."""
    now, speed, total, plain = first.clone(), torch.zeros_like(first), first.new_zeros(len(first)), place.setting
    for batch in feed:
        here = slice(len(batch.y))
        slopes, own = PlainGradient(plain)(now[here].clone(), batch)
        speed[here] = momentum * speed[here] + slopes + (1 - shrink) / 0.1 * now[here]
        moved = now[here] - 0.1 * speed[here]
        now[here] = moved if mask is None else torch.where(mask[here], moved, now[here])
        total[here] += own
    return now, total


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 9), max_size=3),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.integers(1, 5),
    st.sampled_from([1.0, 0.97]),
    st.sampled_from([0.0, 0.5]),
)
def test_chain_steps_are_plain_pytorchs(
    widths: list[int], biases: list[bool], relus: list[bool], active: list[int], width: int, shrink: float,
    momentum: float,
) -> None:  # fmt: skip
    place = here(mlp(widths, biases, relus))
    way, active = StackedGradient(place.setting), sorted(active, reverse=True)
    assert way.chain is not None
    first = place.model.repeat(active[0], 1) * torch.linspace(1, 1.5, active[0])[:, None].double()
    feed = batches(place, active, width)
    ours, oracle = way.descend(first, iter(feed), 0.1, shrink, momentum), PlainGradient(place.setting)
    assert ours is not None
    wanted = [by_hand(place, first, feed, shrink, momentum), oracle.descend(first, iter(feed), 0.1, shrink, momentum)]
    assert (wanted[1] is None) == (momentum > 0)
    for theirs in wanted[: 1 if momentum else 2]:
        assert_close({"weights": ours[0], "losses": ours[1]}, {"weights": theirs[0], "losses": theirs[1]}, 1e-9)
    ours[0].requires_grad_().sum().backward()  # others may go on from there


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(2, 9), min_size=1, max_size=3),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.floats(0.1, 1.0),
    st.integers(0, 1000),
    st.sampled_from([0.0, 0.5]),
)
def test_frozen_neurons_stay_and_others_move_as_without_freezing(
    widths: list[int], biases: list[bool], relus: list[bool], active: list[int], share: float, seed: int,
    momentum: float,
) -> None:  # fmt: skip
    place = here(mlp(widths, biases, relus))
    neurons, active, shrink = place.setting.neurons, sorted(active, reverse=True), 0.97
    keep = neurons.cut(torch.rand(active[0], neurons.size, generator=torch.Generator().manual_seed(seed)), share)
    mask = neurons.expand(keep)
    first = place.model.repeat(active[0], 1) * torch.linspace(1, 1.5, active[0])[:, None].double()
    feed = batches(place, active, 4)
    last, losses = StackedGradient(place.setting).freezing(keep, mask).descend(first, iter(feed), 0.1, shrink, momentum)
    now, total = by_hand(place, first, feed, shrink, momentum, mask)
    assert_close({"weights": last, "losses": losses}, {"weights": now, "losses": total}, 1e-9)
    assert torch.equal(last[~mask], first[~mask])


def test_no_neuron_kept_is_not_every_neuron() -> None:
    place = here(mlp([5, 4], [True] * 3, [True] * 2))
    neurons, first = place.setting.neurons, place.model[None]
    keep = torch.zeros(1, neurons.size, dtype=torch.bool)
    frozen = StackedGradient(place.setting).freezing(keep, neurons.expand(keep))
    last, _ = frozen.descend(first, iter(batches(place, [1], 4)), 0.1, 1.0)
    moved = place.setting.layout.split(last != first)
    assert [name for name, value in moved.items() if value.any()] == ["5.bias"]


@pytest.mark.parametrize("clients", [1, 3])
def test_in_float32(clients: int) -> None:
    place = here(mlp([7, 6], [True] * 3, [True] * 2), torch.float32)
    first, feed = place.model.repeat(clients, 1), batches(place, [clients] * 5, 4)
    way = StackedGradient(place.setting)
    ours = way.descend(first, iter(feed), 0.1, 1.0)
    way.chain = None
    assert_close(dict(zip("wl", ours)), dict(zip("wl", way.descend(first, iter(feed), 0.1, 1.0))), 1e-6)
    assert torch.equal(first, place.model.repeat(clients, 1))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 5), st.integers(1, 60), st.integers(1, 400))
def test_stretches_are_the_steps_one_by_one(sizes: list[int], width: int, examples: int, numbers: int) -> None:
    place, sizes = here(Written()), sorted(sizes, reverse=True)
    rows = torch.arange(9).expand(len(sizes), 9).minimum(torch.tensor(sizes)[:, None] - 1)[:, : sizes[0]]
    plan = Work(epochs=2, batch=width).plan(torch.arange(len(sizes)), rows, sizes, Chance(3, 1))
    feed, found = Feed(place.data, plan), []
    expected = [(batch.x, batch.y, batch.weight) for batch in feed]
    for stretch in feed.stretches(examples, numbers):
        assert len(stretch.y) == 1 or stretch.y.numel() <= examples
        x = [one for some in stretch.x for one in some.clone()]  # the next come to the same place
        found += zip(x, stretch.y, stretch.weight, strict=True)
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_gathered_little_by_little(monkeypatch: pytest.MonkeyPatch) -> None:
    place = here(mlp([7, 6], [True] * 3, [True] * 2))
    plan = Work(epochs=2, batch=4).plan(torch.arange(2), place.shards.rows(torch.arange(2), 10), [10, 10], Chance(3, 1))
    first, way, feed = place.model.repeat(2, 1), StackedGradient(place.setting), Feed(place.data, plan)
    runs = [way.descend(first, feed, 0.1, 0.98), way.descend(first, iter(feed), 0.1, 0.98)]
    for ahead, kept in ((1, chain.KEPT), (200, 1), (chain.AHEAD, 90)):
        monkeypatch.setattr(chain, "AHEAD", ahead)
        monkeypatch.setattr(chain, "KEPT", kept)
        runs.append(way.descend(first, feed, 0.1, 0.98))
    for other in runs[1:]:
        assert_close(dict(zip("wl", runs[0])), dict(zip("wl", other)), 1e-12)


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "again": Again,
    "around": Around,
    "tanh": lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, CLASSES)),
    "relu at the end": lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, CLASSES), nn.ReLU()),
    "not flattened": lambda: nn.Sequential(nn.Linear(4, 2), nn.Flatten(), nn.Linear(6, CLASSES)),
    "frozen layer": frozen_layer,
    "dropout": lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.0), nn.Linear(12, CLASSES)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_are_no_chains(name: str) -> None:
    assert StackedGradient(here(OTHERS[name]()).setting).chain is None


def test_functions_make_a_chain_too() -> None:
    place = here(Written())
    way = fastest_gradient(place.setting, place.data)
    assert isinstance(way, StackedGradient)
    assert way.chain is not None
    assert [link.relu for link in way.chain] == [True, False]


def test_a_misread_chain_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    place = here(Written())
    read = StackedGradient(place.setting).chain
    assert read is not None
    wrong = tuple(link._replace(relu=False) for link in read)
    monkeypatch.setattr("fedloom.engine.gradient.stacked.chain_of", lambda *_: wrong)
    way = fastest_gradient(place.setting, place.data)
    assert isinstance(way, StackedGradient)
    assert way.chain is None
