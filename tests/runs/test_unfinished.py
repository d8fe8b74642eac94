"""Rows of tasks that no step has closed."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import torch

from fedloom.core.costs import MEASURED, Bytes
from fedloom.core.flight import ARRIVED, IN_FLIGHT, Asked, Flight, Version, Wave
from fedloom.core.types import Task
from fedloom.runs.unfinished import unfinished_rows

WHOLE = {"seconds_down": 2.0, "seconds_compute": 4.0, "seconds_up": 4.0, "seconds": 10.0, "joules": 30.0,
         "bytes_down": 100.0, "bytes_up": 80.0}  # fmt: skip
LIKE: dict[str, Any] = {
    **dict.fromkeys(WHOLE, np.zeros(1)), "client": np.zeros(1, np.int64), "round": np.zeros(1, np.int64),
    "share": np.ones(1, np.float32), "arrived": np.ones(1, bool), "fate": np.zeros(1, np.int64), "asked": np.zeros(1),
    "loss": np.ones(1, np.float32),
}  # fmt: skip


def flight_of(ends: float, facts: list[float], asked: list[float], now: float) -> Flight:
    """Clients that were asked at these seconds."""
    count, model = len(asked), torch.zeros(3)
    version = Version(4, model)
    flight = Flight(9, version, slots=5)
    none = torch.zeros(count)
    task = Task(model, None, None, none + 0.5, none.bool(), {}, 5, 0.1, 0.1, 3, torch.arange(count))
    wave = Wave(version, task, torch.tensor([facts] * count, dtype=torch.float64), [ends] * count, [ARRIVED] * count)
    for row, second in enumerate(asked):
        flight.advance(second)
        flight.add(Asked(row, row + 2, wave, row, second, second + ends))
    flight.advance(now)
    return flight


def rows_of(flight: Flight) -> dict[str, list[Any]]:
    found = unfinished_rows(flight, LIKE, np.arange(9) * 10)
    assert {name: values.dtype for name, values in found.items()} == {n: values.dtype for n, values in LIKE.items()}
    return {name: values.tolist() for name, values in found.items()}


def test_tasks_are_as_far_as_they_have_come():
    facts = [WHOLE[name] for name in MEASURED] + [0.0] * 2 * len(Bytes._fields)
    rows = rows_of(flight_of(10.0, facts, [0.0, 5.0, 10.0], now=11.0))
    assert rows["seconds"] == [10.0, 6.0, 1.0]
    assert (rows["seconds_down"], rows["seconds_compute"], rows["seconds_up"]) == ([2, 2, 1], [4, 4, 0], [4, 0, 0])
    assert (rows["bytes_down"], rows["bytes_up"], rows["joules"]) == ([100, 100, 50], [80, 0, 0], [30, 18, 3])
    assert (rows["client"], rows["round"], rows["fate"]) == ([20, 30, 40], [5] * 3, [IN_FLIGHT] * 3)
    assert (rows["share"], rows["arrived"], rows["loss"]) == ([0.5] * 3, [False] * 3, [0.0] * 3)


def test_on_real_nodes_all_seconds_count_as_training():
    flight = flight_of(inf, [0.0] * (len(MEASURED) + 2 * len(Bytes._fields)), [0.0, 5.0], now=11.0)
    task = flight.tasks[0]
    task.end = 7.0
    rows = rows_of(flight)
    assert rows["seconds"] == rows["seconds_compute"] == [7.0, 6.0], "to the reply, if it has come"
    assert rows["bytes_up"] == rows["joules"] == [0.0, 0.0]


def test_nobody_is_in_flight():
    assert set(map(len, rows_of(flight_of(1.0, [], [], now=3.0)).values())) == {0}
