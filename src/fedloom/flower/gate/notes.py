"""What a gate writes into its log of those whom it refuses, without letting them fill it."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict

log = logging.getLogger("fedloom")

EVERY = 60.0  # seconds between lines of one origin for one reason
KNOWN = 1000  # origins and reasons that are remembered


class Notes:
    """One line for each reason and origin in a minute, with the number of those that had none."""

    def __init__(self) -> None:
        self._said: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()  # when, and how often since

    def say(self, who: str, why: str) -> None:
        """Someone was refused."""
        now, key = time.monotonic(), (who, why)
        when, more = self._said.pop(key, (float("-inf"), 0))
        if now - when < EVERY:
            self._said[key] = when, more + 1
            return
        self._said[key] = now, 0
        if len(self._said) > KNOWN:
            self._said.popitem(last=False)
        log.warning("%s was refused: %s%s", who, why, f" ({more} times more in between)" if more else "")
