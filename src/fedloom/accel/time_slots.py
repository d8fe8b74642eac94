"""Time slots common to all runs of a process, so that runs played side by side read from a GPU at the same times."""

import time


def time_slot(seconds: float) -> int:
    """Number of the current slot of this length."""
    return int(time.monotonic() / seconds)
