"""Networks and parts of a round that only tests need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.core.part import Mask, Select
from fedloom.core.types import Cohort, Portion, Setting, State
from fedloom.engine.gradient.dropout import keyed

CLASSES, WORDS = 3, 10


@dataclass(frozen=True)
class Scattered(Mask):
    """Any number of the model, with probability `share`, anew every round."""

    share: float = 0.5

    def __call__(
        self, memory: State, setting: Setting, model: Tensor, ids: Tensor, share: Tensor, chance: Chance
    ) -> tuple[Portion, State]:
        """Single numbers [C, P], not neurons."""
        return Portion(scattered(chance, ids, len(model), self.share)), memory


@dataclass(frozen=True)
class Forced(Select):
    """The given clients, round by round."""

    cohorts: tuple[tuple[int, ...], ...]

    def __call__(self, memory: State, setting: Setting, chance: Chance) -> tuple[Cohort, State]:
        """Rounds count from 1."""
        ids = torch.tensor(self.cohorts[chance.round - 1])
        return Cohort(ids, torch.ones_like(ids, dtype=torch.bool)), memory


def frozen(network: nn.Module, *names: str) -> nn.Module:
    """The network with these layers or parameters frozen."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(not any(name == one or name.startswith(f"{one}.") for one in names))
    return network


def scattered(chance: Chance, ids: Tensor, numbers: int, share: float) -> Tensor:
    """A mask [C, P] that depends on nothing but chance and the client."""
    return chance.uniform("scattered", ids[:, None], torch.arange(numbers)) < share


class MeanOfWords(nn.Module):
    """The mean of the words' vectors; word 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 6, padding_idx=0)
        self.out = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Scores [B, classes] of texts [B, length]."""
        scores: Tensor = self.out(self.words(x).mean(1))
        return scores


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, CLASSES)),
    "cnn": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16, CLASSES),
    ),
    "normed": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(27, CLASSES),
    ),
    "dropout": lambda: keyed(
        nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, CLASSES))
    ),
    "text": MeanOfWords,
    "frozen": lambda: frozen(
        nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(27, 6), nn.ReLU(), nn.Linear(6, CLASSES),
        ),
        "0",
    ),
}  # fmt: skip
