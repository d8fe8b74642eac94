"""Who looks on while a run goes on, and how often?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fedloom.accel.time_slots import time_slot

if TYPE_CHECKING:
    from fedloom.runs.ledger import Ledger

Watch = Callable[[dict[str, Any]], None]  # told of every round's row

SHOWN_EVERY = 0.5  # seconds between looks at a GPU's results: each look waits for it


def row_notifier(ledger: Ledger, watch: Watch | None, device: torch.device) -> Callable[[bool], None]:
    """What tells `watch` of every new row: at once, or all that came since the last look at a GPU."""
    waiting, looked = 0, time_slot(SHOWN_EVERY)

    def show(ended: bool) -> None:
        nonlocal waiting, looked
        waiting += 1
        if watch is None or not (ended or device.type == "cpu" or time_slot(SHOWN_EVERY) != looked):
            return
        for row in ledger.newest(waiting):
            watch(row)
        waiting, looked = 0, time_slot(SHOWN_EVERY)

    return show
