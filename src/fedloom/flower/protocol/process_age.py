"""The age of this process, and the life of the node that it belongs to."""

from __future__ import annotations

import os
import time

LIFE = "FEDLOOM_NODE_LIFE"  # environment of a node's app processes: a word that is another one whenever it is started


def seconds_since_start(now: float) -> float:
    """Seconds from this process's start to `now` (of `time.time`), imports included; 0 where there is no /proc."""
    try:
        with open("/proc/self/stat") as stat, open("/proc/uptime") as uptime:
            ticks = int(stat.read().rpartition(")")[2].split()[19])
            up = float(uptime.read().split()[0])
        return max(0.0, up - ticks / os.sysconf("SC_CLK_TCK") - (time.time() - now))
    except (OSError, ValueError, IndexError):
        return 0.0
