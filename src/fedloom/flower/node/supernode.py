"""Flower's node in a process that ends when it can do nothing more, and says why.

A SuperNode of Flower 1.41 has three threads: the main one looks for messages, one sends heartbeats and one serves the
node's apps. Any answer of the link but 502, 503 and 504, and any error with "ssl" in its text, ends the first or the
second. The third one keeps the process alive, which then looks well and does nothing.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from types import FrameType
from typing import Any, NoReturn

from fedloom.flower.node.drain import drain_at_signal
from fedloom.flower.node.reports import NOTHING, Reports, Verdict
from fedloom.flower.protocol.exit_codes import AGAIN, REMOVED
from fedloom.flower.protocol.pace import pace_looks
from fedloom.flower.protocol.said import said

log = logging.getLogger("fedloom")

SKEW = 240.0  # seconds between two clocks; beyond 300 the link refuses what a node has signed
UNAUTHORISED, NOT_ADMITTED = 401, 412  # HTTP statuses

GONE = "the link no longer admits this node: its key was taken back, or the link has lost its database"
SKEWED = (
    "this machine's clock is {skew:.0f} s off the link's, which therefore refuses what the node signs; set it right"
)
UNSIGNED = "the link refuses what the node signs"
NOT_YET = (
    "the link does not admit this node yet: its key is not registered there, or was taken back, or the node's last "
    "process was killed and counts as connected for a minute"
)


class Watchdog:
    """Notes each answer of the link and each thread that dies, and gives the verdict at the end."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._verdict: Verdict | None = None
        self._admitted = False  # whether the link has ever taken this process for a node
        self._problem = ""  # the last call that did not go well
        self.begun = False  # whether Flower has its own handlers of signals, which end the node in good order

    def answered(self, name: str, status: int, date: str | None) -> None:
        """The link has answered a call; `date` is its clock."""
        self._tell(status)
        if status < 400:
            self._admitted = True
            return
        self._problem = f"the link answered {name} with {status}"
        if status == UNAUTHORISED:
            skew = 0.0 if date is None else abs(time.time() - parsedate_to_datetime(date).timestamp())
            removed = Verdict(REMOVED, GONE) if self._admitted else Verdict(AGAIN, UNSIGNED)
            self._decide(Verdict(AGAIN, SKEWED.format(skew=skew)) if skew > SKEW else removed)
        elif status == NOT_ADMITTED and not self._admitted:
            self._decide(Verdict(AGAIN, NOT_YET))

    def failed(self, name: str, problem: Exception) -> None:
        """The link has not answered a call."""
        self._tell(NOTHING)
        self._problem = f"{name} had no answer ({type(problem).__name__}: {said(problem)})"

    def _tell(self, status: int) -> None:
        """Tell the process that answers messages; without that this one is of no use."""
        try:
            self._reports.call(threading.current_thread() is threading.main_thread(), status)
        except OSError:
            os._exit(AGAIN)

    def died(self, args: threading.ExceptHookArgs) -> None:
        """A thread has died of an exception: a node is not whole without it."""
        threading.__excepthook__(args)
        what = self._problem or f"{args.exc_type.__name__}: {said(args.exc_value)}"
        self._decide(Verdict(AGAIN, f"one of the node's threads died: {what}"))
        os.kill(os.getpid(), signal.SIGTERM)  # ends it in good order, which tells the link

    def asked(self, number: int, frame: FrameType | None) -> None:
        """End, unless Flower does already: its own handlers take the first signal, and more would disturb them."""
        if not self.begun:
            raise SystemExit(0)

    def end(self, code: int, why: str = "") -> NoReturn:
        """End this process with the verdict; with this code, if there is none."""
        self._decide(Verdict(code, why or self._problem or "it was asked to"))
        assert self._verdict is not None
        logging.shutdown()
        os._exit(self._verdict.code)  # threads that are left would keep the process

    def _decide(self, verdict: Verdict) -> None:
        """Keep the first verdict; whoever hears it waits for the end only for so long."""
        if self._verdict is None:
            self._verdict = verdict
            self._reports.end(verdict)


def listen(watchdog: Watchdog) -> None:
    """Let the watchdog see all calls of the link in this process."""
    connection = importlib.import_module("flwr.supernode.fleet_http_connection")
    signing: Any = vars(connection).get("NodeAuthHttpInterceptor")
    if not signing:
        log.warning("this release of Flower calls the link elsewhere; nothing is known of a node's contact with it")
        return

    class Listening:
        """Flower's signing of calls; what is answered is noted."""

        def __init__(self, *keys: Any) -> None:
            self._signing, watchdog.begun = signing(*keys), True

        def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
            """Make a call."""
            name = context.rpc_method.rpartition("/")[2]
            try:
                response = self._signing.intercept(context, call_next)
            except Exception as problem:
                watchdog.failed(name, problem)
                raise
            watchdog.answered(name, response.status_code, response.headers.get("date"))
            return response

    connection.NodeAuthHttpInterceptor = Listening  # type: ignore[attr-defined]


def run_node(words: list[str], reports: Reports) -> NoReturn:
    """Run Flower's command for a node, paced and watched; this process ends with it."""
    watchdog = Watchdog(reports)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, watchdog.asked)
    try:
        from flwr.supernode.cli import flower_supernode

        threading.excepthook = watchdog.died
        pace_looks()
        drain_at_signal()
        listen(watchdog)
        sys.argv = words
        flower_supernode()
    except SystemExit as ended:
        watchdog.end(ended.code if isinstance(ended.code, int) else 0)
    except BaseException as problem:
        log.exception("the node failed")
        watchdog.end(AGAIN, f"{type(problem).__name__}: {said(problem)}")
    watchdog.end(AGAIN)
