"""Columns of the clients' rows: joined, and summed over a round, over a run, and by client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedloom.core.types import State

Columns = dict[str, NDArray[Any]]  # NumPy's calls on few numbers take a third of the time of torch's

PERSONAL, VALIDATION = "personal_score", "validation_score"
SPENT = ("evaluation_seconds", "personal_seconds")  # the second is a part of the first, where clients' own are tried
COLUMNS = (
    *("training_loss", "clients", "arrived", "rejected", "examples_trained", "bytes_down", "bytes_up"),
    *("virtual_seconds", "joules", "wall_seconds", *SPENT),
)
STALENESS = "staleness"  # a column of clients, and the tensor with its histogram
STEPS, SECONDS, WHOLE = "fleet.steps", "fleet.seconds", "fleet.whole_seconds"  # tensors by client
WASTED = {"wasted_seconds": ("seconds",), "wasted_joules": ("joules",), "wasted_bytes": ("bytes_down", "bytes_up")}


def row_names(metrics: Sequence[str], own: str) -> list[str]:
    """The names in every row of a run with these metrics, of which clients' own models are judged by `own`."""
    return ["round", "score", *metrics, "loss", PERSONAL, f"personal_{own}", *COLUMNS]


def joined(parts: list[Columns]) -> Columns:
    """Concatenate the rounds' columns; a round that reached no client lacks the columns that a rule reports."""

    def column(name: str) -> NDArray[Any]:
        return np.concatenate([rows[name] if name in rows else np.zeros_like(rows["share"]) for rows in parts])

    return {name: column(name) for name in dict.fromkeys(name for rows in parts for name in rows)}


def as_tensors(columns: Columns) -> State:
    """The columns as tensors."""
    return {name: torch.from_numpy(value) for name, value in columns.items()}


def row_sums(rows: Columns) -> dict[str, float | None]:
    """What a round's row has of its clients' rows, where they have seconds or staleness."""
    arrived = rows["arrived"]
    found: dict[str, float | None] = {}
    if STALENESS in rows:
        counted = rows[STALENESS][arrived]
        found["staleness_mean"] = float(counted.mean()) if len(counted) else None
        found["staleness_max"] = float(counted.max()) if len(counted) else None
    if "seconds" in rows:
        for name, parts in WASTED.items():  # a real network knows no joules
            known = all(part in rows for part in parts)
            found[name] = float(sum(rows[part][~arrived].sum() for part in parts)) if known else None
    return found


def run_sums(columns: Columns, whole: NDArray[np.float64]) -> State:
    """Replies that counted and seconds at work by client, and counted replies by staleness.

    `columns` are those of all rounds; `whole` are the seconds of a whole round by client.
    """
    if "seconds" not in columns:
        return {}
    clients, arrived = columns["client"], columns["arrived"]
    found = {
        STEPS: np.bincount(clients[arrived], minlength=len(whole)),
        SECONDS: np.bincount(clients, weights=columns["seconds"], minlength=len(whole)),
        WHOLE: whole,
    }
    if STALENESS in columns:
        found[STALENESS] = np.bincount(columns[STALENESS][arrived].astype(np.int64))
    return {name: torch.from_numpy(value) for name, value in found.items()}


def by_number(numbers: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values of the fleet [N] by the clients' numbers, NaN for numbers that are not in the fleet."""
    found = np.full(int(numbers.max()) + 1, np.nan)
    found[numbers] = values
    return found
