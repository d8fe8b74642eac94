"""Who looks on while a run goes on, and how often?"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from fedloom.ledger import Ledger

Watch = Callable[[dict[str, Any]], None]  # told of every round's row

SHOWN_EVERY = 0.5  # seconds between looks at a GPU's results: each look waits for it


def shown(ledger: Ledger, watch: Watch | None, device: torch.device) -> Callable[[bool], None]:
    """What tells `watch` of every new row: at once, or all that came since the last look at a GPU."""
    waiting, looked = 0, time.perf_counter()

    def show(ended: bool) -> None:
        nonlocal waiting, looked
        waiting += 1
        if watch is None or not (ended or device.type == "cpu" or time.perf_counter() - looked > SHOWN_EVERY):
            return
        for row in ledger.newest(waiting):
            watch(row)
        waiting, looked = 0, time.perf_counter()

    return show
