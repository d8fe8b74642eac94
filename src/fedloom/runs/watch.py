"""Calls of a watch function with the rows of a run, as rounds end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fedloom.accel.time_slots import time_slot

if TYPE_CHECKING:
    from fedloom.runs.ledger import Ledger

Watch = Callable[[dict[str, Any]], None]  # called with every round's row
Tell = Callable[[str], None]  # called with notes for the user

SHOWN_EVERY = 0.5  # seconds between readings of a GPU's results: each waits for the GPU


def row_notifier(ledger: Ledger, watch: Watch | None, device: torch.device) -> Callable[[bool], None]:
    """A function that calls `watch` with new rows: after every round, on a GPU with all since the last reading."""
    waiting, last = 0, time_slot(SHOWN_EVERY)

    def show(ended: bool) -> None:
        nonlocal waiting, last
        waiting += 1
        if watch is None or not (ended or device.type == "cpu" or time_slot(SHOWN_EVERY) != last):
            return
        for row in ledger.newest(waiting):
            watch(row)
        waiting, last = 0, time_slot(SHOWN_EVERY)

    return show
