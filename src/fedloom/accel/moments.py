"""Moments at which a GPU is looked at, common to all runs of a process."""

import time


def moment(every: float) -> int:
    """Which stretch of so many seconds it is: runs that are played side by side look at a GPU in the same moments."""
    return int(time.monotonic() / every)
