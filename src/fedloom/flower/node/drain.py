"""A node that is asked to end answers the message in its hands first.

Flower's node ends at SIGTERM wherever it is, and the message that it works on is lost. So is an answer that the server
has not fetched when the node signs off: the link replaces it by an error. After `drain_at_signal`, SIGUSR1 ends a node
in the same good order, but with its last answer sent some seconds ago, and nothing in its hands. In a release of Flower
in which the names used here have moved it ends at once.
"""

from __future__ import annotations

import importlib
import logging
import signal
import time
from collections.abc import Callable
from math import inf
from types import FrameType
from typing import Any

log = logging.getLogger("fedloom")

ASKING = 5.0  # seconds until a look for a message counts as vain: the link may be down
FETCHED = 5.0  # seconds after which the server has fetched an answer; it looks five times a second
DRAIN = signal.SIGUSR1


class Drain:
    """Knows whether a node has a message in its hands, by standing around the two halves of its loop."""

    def __init__(self, pull: Callable[..., Any], push: Callable[..., Any]) -> None:
        self._pull, self._push = pull, push
        self._asking = self._working = self._ending = False
        self._sent = -inf  # when the last answer was sent

    def pull(self, *, receive: Callable[[], Any], **given: Any) -> Any:
        """Look for a message, unless the node is about to end."""

        def received() -> Any:
            self._asking = True
            found = None if self._ending else receive()
            self._working, self._asking = found is not None, False
            return found

        run = self._pull(receive=received, **given)
        if run is None:  # there was none, or it could not be fetched
            self._rest()
        return run

    def push(self, **given: Any) -> None:
        """Wait for the app's answer, and send it."""
        self._push(**given)
        self._sent = time.monotonic()
        self._rest()

    def _rest(self) -> None:
        """Nothing is in hand: end now if that is due."""
        self._working = False
        if self._ending:
            self._leave()

    def _leave(self) -> None:
        """End, when the server has fetched the last answer."""
        if (left := self._sent + FETCHED - time.monotonic()) > 0:
            signal.setitimer(signal.ITIMER_REAL, left)
        else:
            signal.raise_signal(signal.SIGTERM)

    def end(self, number: int, frame: FrameType | None) -> None:
        """End, after the answer to a message in hand; a look that is in vain for long is given up."""
        self._ending = True
        if self._asking and number != signal.SIGALRM:
            signal.setitimer(signal.ITIMER_REAL, ASKING)
        elif not self._working:
            self._leave()


def drain_at_signal() -> None:
    """Let this process's node end at SIGUSR1, with nothing in its hands."""
    loop = importlib.import_module("flwr.supernode.start_client_internal")
    pull, push = (vars(loop).get(name) for name in ("_pull_and_store_message", "_push_messages"))
    if not pull or not push:
        log.warning("this release of Flower works elsewhere; a node that is stopped loses the message in its hands")
        signal.signal(DRAIN, lambda number, frame: signal.raise_signal(signal.SIGTERM))
        return
    drain = Drain(pull, push)
    loop._pull_and_store_message, loop._push_messages = drain.pull, drain.push  # type: ignore[attr-defined]
    for number in (DRAIN, signal.SIGALRM):
        signal.signal(number, drain.end)
