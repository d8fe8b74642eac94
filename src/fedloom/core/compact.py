"""Memory of clients in flight: matrices whose rows are mostly done with are replaced by smaller ones."""

from __future__ import annotations

from collections import defaultdict

import torch

from fedloom.core.flight import Asked, Flight, Wave


def compact(flight: Flight) -> None:
    """Copy the rows that tasks still need, where they are less than half of their matrix.

    So what is held is at most twice what is needed, however long the slowest client of a wave takes, and a row is
    copied about once.
    """
    waves: dict[int, list[Asked]] = defaultdict(list)
    trainings: dict[int, list[Asked]] = defaultdict(list)
    for task in flight.tasks.values():
        waves[id(task.wave)].append(task)
        if task.trained is not None:
            trainings[id(task.trained)].append(task)
    for tasks in waves.values():
        wave = tasks[0].wave
        if 2 * len(tasks) < len(wave.fates):
            smaller = rows_of(wave, [task.row for task in tasks])
            for row, task in enumerate(tasks):
                task.wave, task.row = smaller, row
    for tasks in trainings.values():
        reply = tasks[0].trained
        if reply is not None and 2 * len(tasks) < len(reply.ids):
            needed = reply.rows(torch.tensor([task.place for task in tasks], device=reply.ids.device))
            for place, task in enumerate(tasks):
                task.trained, task.place = needed, place


def rows_of(wave: Wave, rows: list[int]) -> Wave:
    """Some clients of a wave."""
    here = torch.tensor(rows, device=wave.task.model.device)
    return Wave(
        wave.version,
        wave.task.rows(here),
        wave.facts[here],
        [wave.ends[row] for row in rows],
        [wave.fates[row] for row in rows],
        None if wave.pieces is None else wave.pieces[rows],
    )
