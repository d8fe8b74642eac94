"""A node that is told to end answers the message in its hands first.

Flower's node ends at SIGTERM wherever it is, and the message that it works on is lost. After `drain_at_signal`,
SIGUSR1 lets it end in the same good order, but after the answer has left. A release of Flower in which the names used
here have moved ends at once.
"""

from __future__ import annotations

import importlib
import logging
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

log = logging.getLogger("fedloom")

ASKING = 5.0  # seconds until a look for a message counts as vain: the link may be down
DRAIN = signal.SIGUSR1


class Drain:
    """Knows whether a node has a message in its hands, by standing around the two halves of its loop."""

    def __init__(self, pull: Callable[..., Any], push: Callable[..., Any]) -> None:
        self._pull, self._push = pull, push
        self._asking = self._working = self._ending = False

    def pull(self, *, receive: Callable[[], Any], **given: Any) -> Any:
        """Look for a message."""

        def received() -> Any:
            self._asking = True
            found = receive()
            self._working, self._asking = found is not None, False
            return found

        run = self._pull(receive=received, **given)
        if run is None:  # there was none, or it could not be fetched
            self._rest()
        return run

    def push(self, **given: Any) -> None:
        """Wait for the app's answer, and send it."""
        self._push(**given)
        self._rest()

    def _rest(self) -> None:
        """Nothing is in hand: end now if that is due."""
        self._working = False
        if self._ending:
            signal.raise_signal(signal.SIGTERM)

    def end(self, number: int, frame: FrameType | None) -> None:
        """End, after the answer to a message in hand; a look that is in vain for long is given up."""
        self._ending = True
        if number == signal.SIGALRM and not self._working:
            self._asking = False
        if self._asking:
            signal.setitimer(signal.ITIMER_REAL, ASKING)
        elif not self._working:
            signal.raise_signal(signal.SIGTERM)


def drain_at_signal() -> None:
    """Let this process's node end at SIGUSR1, with nothing in its hands."""
    loop = importlib.import_module("flwr.supernode.start_client_internal")
    pull, push = (getattr(loop, name, None) for name in ("_pull_and_store_message", "_push_messages"))
    if pull is None or push is None:
        log.warning("this release of Flower works elsewhere; a node that is stopped loses the message in its hands")
        signal.signal(DRAIN, lambda number, frame: signal.raise_signal(signal.SIGTERM))
        return
    drain = Drain(pull, push)
    loop._pull_and_store_message, loop._push_messages = drain.pull, drain.push  # type: ignore[attr-defined]
    for number in (DRAIN, signal.SIGALRM):
        signal.signal(number, drain.end)
