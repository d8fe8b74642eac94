"""The work of all peers: W1, W2 and W3, their data, and the report of a script.

Data come from files that `run.py` writes once, so that no peer's time includes their creation. No round is evaluated.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FOLDER = Path(__file__).parent / ".venv" / "data"
CLIENTS, SAMPLES, CLASSES, BATCH, RATE = 100, 600, 10, 50, 0.1
SCORED = 10_000  # examples evaluated after the last round, outside of all times
STARTED = float(os.environ.get("PEERS_STARTED", time.time()))  # when the process was asked for


class Work(NamedTuple):
    """The work of one script."""

    name: str
    network: str
    per_round: int
    rounds: int


WORKS = {"W1": ("2nn", 10), "W2": ("2nn", 100), "W3": ("cnn1", 10)}


def asked() -> Work:
    """The workload and number of rounds of `SCRIPT W1 10`."""
    name, rounds = sys.argv[1:3]
    return Work(name, *WORKS[name], int(rounds))


def invent() -> None:
    """Write the data: noisy copies of one pattern per class, 600 for each of 100 clients."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, CLIENTS * SAMPLES)
    # blocks of 4x4 pixels, which convolutions can learn
    blocks = np.kron(rng.random((CLASSES, 7, 7)) < 0.4, np.ones((4, 4))).astype(np.float32)
    patterns = np.float32(0.4) * (blocks.reshape(CLASSES, 784) - np.float32(0.4))
    images = rng.random((len(labels), 784), np.float32) - np.float32(0.5) + patterns[labels]
    np.save(FOLDER / "images.npy", images.reshape(-1, 1, 28, 28))
    np.save(FOLDER / "labels.npy", labels)


@cache
def data() -> tuple[np.ndarray, np.ndarray]:
    """Images [60000, 1, 28, 28] and labels; client n owns rows 600 n to 600 n + 599."""
    return tuple(np.load(FOLDER / f"{name}.npy", allow_pickle=False) for name in ("images", "labels"))


def network(name: str) -> Any:
    """The networks as nn.Module, with equal initial weights for all peers on PyTorch."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if name == "2nn":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, CLASSES)
        )
    return nn.Sequential(
        nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, CLASSES),
    )  # fmt: skip


def accuracy(module: Any) -> float:
    """Accuracy of an nn.Module on 10,000 training examples, to show that it learnt."""
    import torch

    images, labels = (torch.from_numpy(array[:SCORED]) for array in data())
    with torch.no_grad():
        right = [(module(x).argmax(1) == y).sum() for x, y in zip(images.split(1000), labels.split(1000))]
    return float(sum(right)) / len(labels)


class Clock:
    """The times at which rounds ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def tick(self) -> None:
        """Record the end of a round."""
        self.ends.append(time.time())

    def report(self, accuracy: float, steps: int | None, **more: Any) -> None:
        """Print one line of JSON: milliseconds of the rounds after the first, and seconds since the request."""
        ms = [1000 * (b - a) for a, b in zip(self.ends, self.ends[1:])]
        facts = {"rounds_ms": ms, "first_s": self.ends[0] - STARTED, "whole_s": self.ends[-1] - STARTED}
        print(json.dumps({**facts, "accuracy": accuracy, "steps": steps, **more}), flush=True)
