"""Rows of the tasks that no step has closed, as far as they have come."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedloom.core.costs import MEASURED
from fedloom.core.flight import IN_FLIGHT, Asked, Flight, by_wave, facts_of
from fedloom.runs.columns import Columns

PHASES = ("seconds_down", "seconds_compute", "seconds_up")


def unfinished_rows(flight: Flight, like: Columns, numbers: NDArray[np.int64]) -> Columns:
    """A row for each task in flight, or whose reply waits, with the columns of `like`; what is not known is 0.

    `numbers` [N] are the clients' numbers in the partition. The round is the next one.
    """
    if not flight.tasks:
        return {name: values[:0] for name, values in like.items()}
    tasks = sorted(flight.tasks.values(), key=lambda task: task.client)
    facts = facts_of(tasks, flight.version.model.device).cpu().numpy()
    whole = dict(zip(MEASURED, facts.T))
    foreseen = np.isfinite([task.wave.ends[task.row] for task in tasks])
    whole["seconds_compute"] = np.where(foreseen, whole["seconds_compute"], np.inf)  # on real nodes nobody knows
    asked, until = (np.array(times) for times in zip(*((task.asked, min(task.end, flight.now)) for task in tasks)))
    done, left = {}, until - asked
    for name in PHASES:
        done[name] = np.minimum(whole[name], left)
        left = left - done[name]
    seconds = sum(done.values())
    part = {name: _part(done[name], whole[name]) for name in PHASES}
    known = {
        **done,
        "seconds": seconds,
        "joules": whole["joules"] * _part(seconds, whole["seconds"]),
        "bytes_down": whole["bytes_down"] * part["seconds_down"],
        "bytes_up": whole["bytes_up"] * part["seconds_up"],
        "round": np.full(len(tasks), flight.version.number + 1),
        "client": numbers[[task.client for task in tasks]],
        "fate": np.full(len(tasks), IN_FLIGHT),
        "share": _shares(tasks),
        "serial": np.array([task.serial for task in tasks]),
        "asked": asked,
        "base": np.array([task.base for task in tasks]),
        "staleness": np.array([flight.staleness(task) for task in tasks]),
    }
    none = np.zeros(len(tasks))
    return {name: known.get(name, none).astype(values.dtype) for name, values in like.items()}


def _shares(tasks: Sequence[Asked]) -> NDArray[np.float64]:
    """The share of the model that each task's client may use."""
    found = np.zeros(len(tasks))
    for wave, rows, places in by_wave(tasks):
        found[places.numpy()] = wave.task.share.cpu()[rows].numpy()
    return found


def _part(done: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much of it is done; all where there is nothing to do."""
    return np.divide(done, whole, out=np.ones_like(done), where=whole > 0)
