"""A tiny fleet that trains adapters, and every method for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import nn

from fedloom import lora
from fedloom.chance import Chance
from fedloom.core.types import Examples
from fedloom.engine.gradient.dropout import keyed
from fedloom.method import Method
from fedloom.methods.fedit import fedit
from fedloom.methods.ffa_lora import ffa_lora
from fedloom.methods.flexlora import flexlora
from fedloom.methods.hetlora import hetlora
from pieces import CLASSES
from worlds import SEED, SIZES, World, small, world_of

RANK = 4

ADAPTED: list[tuple[str, Callable[[], Method]]] = [
    ("fedit", lambda: small(fedit())),
    ("hetlora", lambda: small(hetlora(gamma=0.6, penalty=0.05))),
    ("hetlora-examples", lambda: small(hetlora(prune=False, penalty=0.0, weigh="examples"))),
    ("hetlora-joint", lambda: small(hetlora(prune=False, gamma=0.5, weigh="joint"))),
    ("flexlora", lambda: small(flexlora())),
]
HALF: list[tuple[str, Callable[[], Method]]] = [("ffa-lora", lambda: small(ffa_lora()))]  # A is frozen


def dense(freeze_a: bool = False, dropout: float = 0.0) -> nn.Module:
    """Two dense layers with adapters, and a head that is trained."""
    network = nn.Sequential(
        nn.Flatten(), nn.Linear(36, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, CLASSES)
    )
    return lora(network, RANK, alpha=2.0, targets="linear", freeze_a=freeze_a, dropout=dropout)


def images() -> nn.Module:
    """Two convolutions with adapters."""
    network = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 6, 2), nn.ReLU(), nn.Flatten(), nn.Linear(24, CLASSES),
    )  # fmt: skip
    return lora(network, RANK, alpha=2.0, targets="all")


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "dense": dense,
    "images": images,
    "half": lambda: dense(freeze_a=True),
    "dropout": lambda: keyed(dense(dropout=0.3)),
}


@cache
def adapted(network: str = "dense", dtype: torch.dtype = torch.float32) -> World:
    """A seeded world around one of `NETWORKS`; B is not zero, so that every number matters."""
    chance, total = Chance(SEED, 0), sum(SIZES)
    x = chance.uniform("pixels", torch.arange(total)[:, None, None, None], torch.arange(36).view(1, 6, 6)).to(dtype)
    y = (chance.uniform("classes", torch.arange(total)) * CLASSES).long()
    return world_of(NETWORKS[network](), Examples(x * 4 - 2, y), torch.arange(total).split(list(SIZES)), dtype)
