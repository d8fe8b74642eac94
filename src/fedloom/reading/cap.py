"""The most memory that one file may take, checked before it is taken: a small file can unpack to a huge one."""

from __future__ import annotations

import math
import os
from pathlib import Path

from fedloom.accel.machine import free_memory, size
from fedloom.errors import BadData, BadExperiment

VARIABLE = "FEDLOOM_READ_GIB"  # sets the cap, in GiB
SHARE = 0.8  # of the free memory, where the variable is not set


def check_room(file: str | Path, needed: int) -> None:
    """Refuse a file that would take more memory than one file may; `needed` in bytes."""
    given = os.environ.get(VARIABLE, "")
    cap = int(SHARE * free_memory()) if not given else _bytes(given)
    if needed <= cap:
        return
    why = f"{SHARE:.0%} of what is free here" if not given else f"by {VARIABLE}"
    raise BadData(
        f"{file} would take about {size(needed)} of memory, and a file may take {size(cap)} ({why}); if the file is as "
        f"it should be, set {VARIABLE}={math.ceil(needed / 2**30)} or more (GiB), or use a machine with more memory."
    )


def _bytes(given: str) -> int:
    """The variable's value in bytes."""
    try:
        found = float(given)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise BadExperiment(f"{VARIABLE} is '{given}'; expected a number of GiB above 0, such as 16.")
    return int(found * 2**30)


def reason(error: Exception) -> str:
    """An error of a reader in one line."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
