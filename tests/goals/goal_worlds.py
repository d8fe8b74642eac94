"""A tiny fleet for every goal: networks, examples and targets, drawn by hashing."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.core.goal import Goal, Transform
from fedloom.core.types import Examples, Fleet, Setting
from fedloom.engine.storage.shards import Shards
from fedloom.goals import binary, classes, labels, next_token, numbers, pixels, tokens
from fedloom.layout import flatten, layout_of
from fedloom.world.fleets import make_devices
from worlds import SEED, SIZES, World, hashed

# the five systems and what they are compared with, by their names in `worlds.METHODS`
METHODS = ("fedavg", "fedprox", "scaffold", "fjord", "fedspu", "feddd", "safari", "ra-fed", "ram-fed", "fedumf")
CLASSES, WORDS, LENGTH = 3, 10, 7
N = sum(SIZES)


def drawn(what: str, *shape: int) -> Tensor:
    """Numbers in [0, 1)."""
    count = int(torch.Size(shape).numel())
    return Chance(SEED, 0).uniform(what, torch.arange(count)).view(shape)


def plain(outputs: int) -> nn.Module:
    """A perceptron for images."""
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, outputs))


def by_place(outputs: int) -> nn.Module:
    """Scores for every place of a text."""
    return nn.Sequential(nn.Embedding(WORDS, 6), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, outputs))


def by_pixel(outputs: int) -> nn.Module:
    """Scores for every pixel of an image."""
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, outputs, 1))


def images() -> Tensor:
    """Examples [n, 1, 6, 6]."""
    return drawn("pixels", N, 1, 6, 6) * 4 - 2


def texts() -> Tensor:
    """Examples [n, length]; word 0 is padding, from some place on."""
    words = (drawn("words", N, LENGTH) * (WORDS - 1)).long() + 1
    end = 2 + (drawn("ends", N) * (LENGTH - 1)).long()
    return torch.where(torch.arange(LENGTH) < end[:, None], words, 0)


def by_text(outputs: int) -> nn.Module:
    """Scores for a whole text."""
    return nn.Sequential(nn.Embedding(WORDS, 6), nn.Flatten(), nn.Linear(6 * LENGTH, outputs))


def class_of(what: str, count: int, *shape: int) -> Tensor:
    """Classes below `count`."""
    return (drawn(what, *shape) * count).long()


def some_ignored(y: Tensor, ignore: int) -> Tensor:
    """A third of the places counts for nothing; of every fifth example, none counts."""
    y = torch.where(drawn("ignored", *y.shape) < 1 / 3, ignore, y)
    none = (torch.arange(len(y)) % 5 == 3).view(-1, *(1,) * (y.dim() - 1))
    return torch.where(none, ignore, y)


class Case(NamedTuple):
    """What a goal is tried on."""

    goal: Goal
    network: Callable[[], nn.Module]
    x: Callable[[], Tensor]
    y: Callable[[], Tensor]


def follow() -> Tensor:
    """Targets of `texts` for the goal next-token."""
    goal = next_token()
    assert goal.derive is not None
    return torch.from_numpy(goal.derive(texts().numpy()))


def some_classes() -> Tensor:
    """A class for every example."""
    return class_of("classes", CLASSES, N)


CASES: dict[str, Case] = {
    "classes": Case(classes(), lambda: plain(CLASSES), images, some_classes),
    "classes-weighted": Case(classes((0.5, 2.0, 0.0), 0.1), lambda: plain(CLASSES), images, some_classes),
    "classes-focal": Case(classes(focal=2.0), lambda: plain(CLASSES), images, some_classes),
    "classes-of-texts": Case(classes(), lambda: by_text(CLASSES), texts, some_classes),
    "labels": Case(labels(2.0), lambda: plain(4), images, lambda: class_of("labels", 2, N, 4)),
    "binary": Case(binary(), lambda: plain(1), images, lambda: class_of("binary", 2, N)),
    "numbers": Case(numbers(), lambda: plain(1), images, lambda: drawn("numbers", N) * 2 - 1),
    "numbers-l1": Case(numbers("l1"), lambda: plain(2), images, lambda: drawn("numbers", N, 2) * 2 - 1),
    "numbers-huber": Case(numbers("huber", 0.3), lambda: plain(2), images, lambda: drawn("numbers", N, 2) * 2 - 1),
    "tokens": Case(
        tokens(), lambda: by_place(CLASSES), texts, lambda: some_ignored(class_of("tags", CLASSES, N, LENGTH), -100)
    ),
    "tokens-per-token": Case(
        tokens("token"), lambda: by_place(CLASSES), texts,
        lambda: some_ignored(class_of("tags", CLASSES, N, LENGTH), -100),
    ),
    "next-token": Case(next_token(), lambda: by_place(WORDS), texts, follow),
    "pixels": Case(
        pixels(), lambda: by_pixel(CLASSES), images, lambda: some_ignored(class_of("masks", CLASSES, N, 6, 6), 255)
    ),
    "pixels-per-pixel": Case(
        pixels("pixel"), lambda: by_pixel(CLASSES), images,
        lambda: some_ignored(class_of("masks", CLASSES, N, 6, 6), 255),
    ),
}  # fmt: skip


@cache
def goal_world(name: str, dtype: torch.dtype = torch.float32, transform: Transform | None = None) -> World:
    """The tiny fleet with one of `CASES`; made once, and nothing in it changes."""
    case = CASES[name]
    x, y = case.x(), case.y()
    data = Examples(*(part.to(dtype) if part.is_floating_point() else part for part in (x, y)))
    module = hashed(case.network()).to(dtype)
    shards = Shards(list(torch.arange(N).split(list(SIZES))), torch.device("cpu"))
    own = shards.examples.split(shards.sizes)
    known = case.goal.strata and y.dim() == 1
    counts = [y[rows].bincount(minlength=CLASSES) if known else torch.tensor([len(rows)]) for rows in own]
    devices = make_devices("table4", len(SIZES), SEED)
    fleet = Fleet(torch.tensor(shards.sizes), torch.stack(counts), devices, by_class=case.goal.one_class)
    layout = layout_of(module)
    setting = Setting(fleet, module, layout, case.goal, data.x[:2], transform)
    return World(setting, data, shards, flatten(module, layout))
