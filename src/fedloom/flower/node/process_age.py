"""How old is this process?"""

from __future__ import annotations

import os
import time


def since_start(now: float) -> float:
    """Seconds that this process had been there, imports and all; 0 where the system does not say."""
    try:
        with open("/proc/self/stat") as stat, open("/proc/uptime") as uptime:
            ticks = int(stat.read().rpartition(")")[2].split()[19])
            up = float(uptime.read().split()[0])
        return max(0.0, up - ticks / os.sysconf("SC_CLK_TCK") - (time.time() - now))
    except (OSError, ValueError, IndexError):
        return 0.0
