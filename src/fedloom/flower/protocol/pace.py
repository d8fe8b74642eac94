"""Shorter waits in Flower 1.41: a node looks for messages sooner after an answer, and apps for objects on their way.

A SuperNode sleeps 3 seconds between looks. An app or server that is told of a message before all of its objects have
arrived tries again after 1, 2, 4, 8 and then every 10 seconds, and on a slow link loses half of the time. Flower has no
settings for either, but its functions take the second as arguments. A release in which these names have moved keeps
its own waits.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
import time
from functools import partial
from types import SimpleNamespace

log = logging.getLogger("fedloom")

FIRST, LONGEST, PART = 0.5, 3.0, 0.5  # seconds between looks at first and at last; between them a part of those waited
REPLY = 0.1  # seconds between looks for an app's reply
BACKOFF, SLOWEST = 0.1, 0.4  # seconds until a missing object is asked for again: at first, at most
PULLERS = (
    ("flwr.supernode.runtime.run_clientapp", "pull_and_inflate_object_from_tree"),
    ("flwr.superlink.grid.http_grid", "pull_objects"),
)


def look_after(waited: float) -> float:
    """Seconds until a node's next look, if it has waited for a message so long."""
    return min(LONGEST, max(FIRST, PART * waited))


def looks_within(seconds: float) -> float:
    """Looks of a node that has waited for so many seconds since its answer, which the first follows at once."""
    if seconds <= 0:
        return 0.0
    count, waited = 1.0, 0.0
    while (step := look_after(waited)) < LONGEST and waited + step <= seconds:
        count, waited = count + 1, waited + step
    return count + (seconds - waited) / LONGEST if step == LONGEST else count


class Pacer:
    """`time.sleep` of a node's loop: long sleeps are between looks, short ones while its app works."""

    def __init__(self) -> None:
        self._waited = 0.0  # seconds since the app last worked

    def sleep(self, seconds: float) -> None:
        """Sleep, as a rule shorter than asked for."""
        if seconds < 1:
            self._waited = 0.0
            time.sleep(min(seconds, REPLY))
            return
        step = min(seconds, look_after(self._waited))
        time.sleep(step)
        self._waited += step


def pace_looks() -> None:
    """Let this process's node look for messages at our pace."""
    loop = importlib.import_module("flwr.supernode.start_client_internal")
    if getattr(loop, "time", None) is time:
        loop.time = SimpleNamespace(**{**vars(time), "sleep": Pacer().sleep})  # type: ignore[attr-defined]
    else:
        log.warning("this release of Flower waits elsewhere; its node looks for messages every 3 seconds")


def pace_pulls() -> None:
    """Let this process ask for objects that are on their way soon again, for as long as it takes."""
    wanted = {"initial_backoff": BACKOFF, "backoff_cap": SLOWEST, "max_tries_per_object": None}
    for place, name in PULLERS:
        module = sys.modules.get(place)  # an app of the other kind does not load it
        found = getattr(module, name, None)
        if found is None or isinstance(found, partial):
            continue
        if wanted.keys() <= inspect.signature(found).parameters.keys():
            setattr(module, name, partial(found, **wanted))
        else:
            log.warning("this release of Flower waits elsewhere for objects on their way: %s.%s", place, name)
