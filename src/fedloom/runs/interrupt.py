"""Ctrl-C: the first lets the round end, so that it can be saved; the second stops at once."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

log = logging.getLogger("fedloom")


class Interrupt:
    """A request to stop, made by Ctrl-C."""

    asked = False

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if a stop was requested."""
        if self.asked:
            raise KeyboardInterrupt

    def _ask(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal: request a stop, or stop at once if one was requested."""
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        with suppress(RuntimeError):  # the signal may arrive while a line is being printed
            log.warning("stopping after this round; Ctrl-C once more stops at once")


@contextmanager
def delayed_interrupt() -> Iterator[Interrupt]:
    """Delay Ctrl-C until `check`, in the main thread and if no other handler is installed."""
    interrupt = Interrupt()
    usual = threading.current_thread() is threading.main_thread()
    if not usual or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield interrupt
        return
    signal.signal(signal.SIGINT, interrupt._ask)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
