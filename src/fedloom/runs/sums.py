"""Sums over the clients' rows: of a round, staleness and work in vain; of a run, steps and seconds of each client."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedloom.core.types import State

Columns = dict[str, NDArray[Any]]

STALENESS = "staleness"  # a column of clients, and the tensor with its histogram
STEPS, SECONDS, WHOLE = "fleet.steps", "fleet.seconds", "fleet.whole_seconds"  # tensors by client
WASTED = {"wasted_seconds": ("seconds",), "wasted_joules": ("joules",), "wasted_bytes": ("bytes_down", "bytes_up")}


def row_sums(rows: Columns) -> dict[str, float | None]:
    """What a round's row has of its clients' rows, where they have seconds or staleness."""
    arrived = rows["arrived"]
    found: dict[str, float | None] = {}
    if STALENESS in rows:
        counted = rows[STALENESS][arrived]
        found["staleness_mean"] = float(counted.mean()) if len(counted) else None
        found["staleness_max"] = float(counted.max()) if len(counted) else None
    if "seconds" in rows:
        found |= {name: float(sum(rows[part][~arrived].sum() for part in parts)) for name, parts in WASTED.items()}
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
