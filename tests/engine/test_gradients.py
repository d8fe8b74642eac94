"""Three ways to differentiate a cohort's loss: one client after another, under vmap, and stacked. They agree."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.core.types import Batch
from fedloom.engine.gradient.fastest import fastest_gradient
from fedloom.engine.gradient.plain import PlainGradient
from fedloom.engine.gradient.protocol import Gradient, GradientKind
from fedloom.engine.gradient.stacked import StackedGradient
from fedloom.engine.gradient.swapped import SwappedGradient
from fedloom.engine.gradient.vmapped import VmappedGradient
from fedloom.method import Method
from fedloom.methods.fedavg import fedavg
from fedloom.methods.scaffold import scaffold
from pieces import CLASSES, NETWORKS, WORDS
from worlds import World, assert_close, play, small, world, world_of

CLIENTS, BATCH = 3, 4
REAL = (4, 3, 1)  # a full batch, a short one, a single example


class Residual(nn.Module):
    """Functions instead of layers, a sum of two branches, and a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.twice, self.out = nn.Linear(36, 5), nn.Linear(5, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.enter(torch.flatten(x, 1)))
        x = x + torch.tanh(self.twice(x))
        return self.out(x + self.twice(x))


class Tied(nn.Module):
    """Two layers that share one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.one, self.two = nn.Linear(36, 5), nn.Linear(5, 5), nn.Linear(5, 5)
        self.two.weight, self.out = self.one.weight, nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.two(torch.tanh(self.one(self.enter(x.flatten(1)))))))


class Loose(nn.Module):
    """A parameter that belongs to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.gain = nn.Linear(36, CLASSES), nn.Parameter(torch.ones(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x.flatten(1)) * self.gain


class TiedWords(nn.Module):
    """The words that are read are those that are scored: an embedding and a layer with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.score, self.out = nn.Embedding(WORDS, 4), nn.Linear(4, WORDS), nn.Linear(WORDS, CLASSES)
        self.score.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.score(self.words(x).mean(1))))


class Idle(nn.Module):
    """A layer that has no say."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.out = nn.Linear(2, 2), nn.Linear(36, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x.flatten(1))


class Across(nn.Module):
    """Looks across the batch outside any norm layer, which only the oracle reads rightly."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(36, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.out(x - x.mean(0))


class Branching(nn.Module):
    """Decides by the data, which neither tracing nor vmap can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(36, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.out(x.flatten(1))
        return scores if bool(scores.sum() > 0) else scores * 2


class Sentence(nn.Module):
    """Dense layers and a layer norm over every word."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.dense = nn.Embedding(WORDS, 4), nn.Linear(4, 5)
        self.norm, self.out = nn.LayerNorm(5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.norm(self.dense(self.words(x)))).sum(1))


def image(*layers: nn.Module, after: int) -> Callable[[], nn.Module]:
    """Layers over images, then one dense layer."""
    return lambda: nn.Sequential(*layers, nn.Flatten(), nn.Linear(after, CLASSES))


def signal(*layers: nn.Module, after: int) -> Callable[[], nn.Module]:
    """Layers over the image read as one long signal."""
    return lambda: nn.Sequential(nn.Flatten(2), *layers, nn.Flatten(), nn.Linear(after, CLASSES))


STACKED: dict[str, Callable[[], nn.Module]] = {
    **NETWORKS,
    "strides": image(nn.Conv2d(1, 2, 3, stride=2, dilation=2, padding=2, bias=False), nn.ELU(), after=18),
    "depthwise": image(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 4, 3, groups=2), nn.AdaptiveAvgPool2d(1), after=4),
    "signal": signal(nn.Conv1d(1, 2, 5, stride=3), nn.BatchNorm1d(2), nn.ReLU(), nn.AvgPool1d(2), after=10),
    "group norm": image(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), after=64),
    "layer norm": image(nn.LayerNorm((6, 6)), nn.Conv2d(1, 2, 3), nn.LayerNorm(4), nn.Tanh(), after=32),
    "bare norms": image(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, affine=False), nn.GroupNorm(2, 4, affine=False),
        nn.LayerNorm(4, elementwise_affine=False), after=64,
    ),
    "deep norms": image(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), after=27
    ),
    "no statistics": image(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, track_running_stats=False), after=32),
    "slow statistics": image(nn.BatchNorm2d(1, momentum=0.01, eps=0.1), nn.Conv2d(1, 2, 3), after=32),
    "residual": Residual,
    "sentence": Sentence,
    "idle": Idle,
    "tied": Tied,
    "tied words": TiedWords,
}  # fmt: skip
VMAPPED: dict[str, Callable[[], nn.Module]] = {"loose": Loose}
PLAIN: dict[str, Callable[[], nn.Module]] = {
    "across": Across,
    "branching": Branching,
    "cumulative statistics": image(nn.BatchNorm2d(1, momentum=None), nn.Conv2d(1, 2, 3), after=32),
}
ALL = {**STACKED, **VMAPPED, **PLAIN}


def here(name: str) -> World:
    """The network in double precision, on the tiny world's images or texts."""
    data = world("text" if name in ("text", "sentence", "tied words") else "mlp", torch.float64).data
    return world_of(ALL[name](), data, torch.arange(24).split(8), torch.float64)


def clients(place: World) -> Tensor:
    """Unlike weights [C, P] for every client."""
    numbers = torch.arange(len(place.model))
    noise = Chance(3, 0).uniform("noise", torch.arange(CLIENTS)[:, None], numbers).double()
    return place.model + 0.1 * noise  # statistics included: a variance stays positive


def batch(place: World, number: int = 0, active: int = CLIENTS) -> Batch:
    """Examples of their own for every client; padding repeats real ones, as plans do."""
    index = torch.arange(CLIENTS * BATCH).view(CLIENTS, BATCH) + 5 * number
    real = (torch.arange(BATCH) < torch.tensor(REAL)[:, None]).double()
    chosen = Batch(place.data.x[index], place.data.y[index], real / real.sum(1, keepdim=True), index[:, 0] + number)
    return Batch(*(t[:active] for t in chosen))


def ways(place: World) -> list[Gradient]:
    """All ways that can run this network."""
    norms = any("BatchNorm" in type(part).__name__ for part in place.setting.module.modules())
    return [StackedGradient(place.setting), SwappedGradient(place.setting)] + (
        [] if norms else [VmappedGradient(place.setting)]
    )


@pytest.mark.parametrize("count", [CLIENTS, 1])
@pytest.mark.parametrize("name", STACKED)
def test_all_ways_agree(name: str, count: int) -> None:
    place = here(name)
    theirs = clients(place)[:count]
    expected = PlainGradient(place.setting)(theirs, batch(place, active=count))
    for way in ways(place):
        ours = clients(place)[:count]
        grads, losses = way(ours, batch(place, active=count))
        found = {"grads": grads, "losses": losses, "weights and statistics": ours}
        assert_close(found, {"grads": expected[0], "losses": expected[1], "weights and statistics": theirs}, 1e-9)


@pytest.mark.parametrize("name", VMAPPED)
def test_vmapped_agrees(name: str) -> None:
    place = here(name)
    plain, vmapped = (
        way(clients(place), batch(place)) for way in (PlainGradient(place.setting), VmappedGradient(place.setting))
    )
    assert_close({"grads": vmapped[0], "losses": vmapped[1]}, {"grads": plain[0], "losses": plain[1]}, 1e-9)


@pytest.mark.parametrize("name", ["normed", "signal", "slow statistics"])
def test_running_statistics_move_and_have_no_gradient(name: str) -> None:
    place = here(name)
    trained = place.setting.layout.trained
    assert trained < len(place.model)
    for way in (PlainGradient(place.setting), StackedGradient(place.setting)):
        params = clients(place)
        grads, _ = way(params, batch(place))
        assert torch.equal(params[:, :trained], clients(place)[:, :trained])
        assert (params[:, trained:] != clients(place)[:, trained:]).all()
        assert not grads[:, trained:].any()


@pytest.mark.parametrize("name", STACKED)
def test_fused_descent_agrees_with_single_steps(name: str) -> None:
    place, rate, shrink = here(name), 0.1, 0.98
    trained, active = place.setting.layout.trained, (3, 2, 2, 1)

    def feed() -> Iterator[Batch]:
        return (batch(place, number, now) for number, now in enumerate(active))

    params, total = clients(place), torch.zeros(CLIENTS, dtype=torch.float64)
    for each in feed():
        now = len(each.y)
        grads, losses = PlainGradient(place.setting)(params[:now], each)
        params[:now, :trained] = shrink * params[:now, :trained] - rate * grads[:, :trained]
        total[:now] += losses
    for way in (PlainGradient(place.setting), StackedGradient(place.setting)):
        first = clients(place)
        done = way.descent(first, feed(), rate, shrink)
        assert torch.equal(first, clients(place))  # what the clients began from is still needed
        assert_close({"weights": done[0], "losses": done[1]}, {"weights": params, "losses": total}, 1e-9)


@pytest.mark.parametrize("name", STACKED)
def test_outputs_agree(name: str) -> None:
    place = here(name)
    params, x = clients(place), batch(place).x
    expected = PlainGradient(place.setting).outputs(params, x)
    assert expected.shape == (CLIENTS, BATCH, CLASSES)
    for way in ways(place):
        assert_close({"outputs": way.outputs(params, x)}, {"outputs": expected}, 1e-9)


REASONS = {
    "loose": {"stacked": "a parameter outside any layer", "swapped": "has no stacked form"},
    "across": dict.fromkeys(("stacked", "swapped", "vmapped"), "differs from plain PyTorch by"),
    "branching": {"stacked": "control flow", "swapped": "differs from plain PyTorch by", "vmapped": "control flow"},
    "cumulative statistics": {
        "stacked": "differs from plain PyTorch by",
        "swapped": "differs from plain PyTorch by",
        "vmapped": "batch statistics would count padding",
    },
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, "stacked") for name in STACKED]
    + [(name, "vmapped") for name in VMAPPED]
    + [(name, "one by one") for name in PLAIN],
)
def test_the_fastest_right_way_is_chosen(name: str, kind: GradientKind, caplog: pytest.LogCaptureFixture) -> None:
    place = here(name)
    before = place.model.clone()
    with caplog.at_level(logging.INFO, "fedloom"):
        gradient, slower = fastest_gradient(place.setting, place.data)
    assert gradient.kind == kind
    assert bool(caplog.records) == (kind == "one by one")
    assert all(record.levelno == logging.INFO for record in caplog.records)  # on a CPU it may be the fastest way
    assert torch.equal(place.model, before)
    wanted = REASONS.get(name, {})
    assert [way for way, _ in slower] == list(wanted)
    for way, why in slower:
        assert why
        assert wanted[way] in why


@pytest.mark.parametrize("method", [small(fedavg()), small(scaffold())], ids=["fedavg", "scaffold"])
@pytest.mark.parametrize("name", [*VMAPPED, "across", "branching", "idle"])
def test_odd_networks_train_as_in_the_loop(name: str, method: Method) -> None:
    place = here(name)
    fast, slow = (play(place, method, engine, rounds=2).model for engine in (place.local(method), place.loop(method)))
    assert not torch.equal(fast, place.model)
    assert_close({"model": fast}, {"model": slow}, 1e-6)
