"""A process that loads everything once and answers each of a node's messages in a fork, so that answers come sooner.

`python -m fedloom.flower.warm flower-supernode ...` starts the node's command with `--isolation process` and does what
Flower's `flower-superexec` would do for it, except that the app does not start a new Python. It watches the node as
well: one that can do nothing more is ended, and the exit code says whether to start it again.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import secrets
import signal
import sys
import time
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any

from fedloom.flower.deploy.processes import memory_of
from fedloom.flower.node.drain import DRAIN
from fedloom.flower.node.figures import NodeFigures
from fedloom.flower.node.fork import STOPPING, Fork, Stuck, runtime_client
from fedloom.flower.node.reports import Heard, Reports, Verdict
from fedloom.flower.node.supernode import run_node
from fedloom.flower.protocol.code import code_of_fedloom
from fedloom.flower.protocol.exit_codes import AGAIN
from fedloom.flower.protocol.figures import METRICS, figures_web
from fedloom.flower.protocol.pace import pace_pulls
from fedloom.flower.protocol.process_age import LIFE

log = logging.getLogger("fedloom")

INTERVAL = 0.1  # seconds between looks for a message
START = 600.0  # seconds that a node may take until it first looks for messages
SILENCE = 180.0  # seconds without a call of the link, or an answer of the node, after which it is started again
DRAINING = 60.0  # seconds for the answer to the message in hand when the node is asked to end
GRACE = 10.0  # seconds for an end in good order
USAGE = "usage: python -m fedloom.flower.warm flower-supernode ... --port NUMBER, without --ssl-..."
LOADED = ("fedloom.flower.node.answer", "fedloom.flower.node.personal", "flwr.supernode.runtime.run_clientapp")


class Node:
    """A node's process, which is a fork of this one, and the forks that answer its messages."""

    def __init__(self, words: list[str], address: str) -> None:
        hearing, telling = os.pipe()
        self._address, self._heard, self._forks = address, Heard(hearing), list[Fork]()
        self._patience = time.monotonic() + START  # until when it may do nothing
        self._figures = NodeFigures(self._heard, self._memory, time.time())
        port = int(os.environ.get(METRICS) or 0)
        self._web = figures_web(port, self._figures.figures, self._figures.health, threads=False) if port else None
        self._stopped = False  # whether this process was asked to end
        self._drained = inf  # until when the node may go on with the message in its hands
        self._code: int | None = None  # the exit code of the node's process
        self._pid = os.fork()
        if self._pid == 0:
            os.close(hearing)
            self._let_go()
            run_node([*words, "--isolation", "process"], Reports(telling))
        os.close(telling)

    def stop(self, number: int, frame: FrameType | None) -> None:
        """End, as a signal asks; at the first SIGTERM after the answer to the message in hand, if there is one."""
        if number == signal.SIGTERM and self._drained == inf:
            self._drained = time.monotonic() + DRAINING
            self._ask(DRAIN)
            return
        self._stopped = True
        self._ask()

    def _let_go(self) -> None:
        """In a fork: the port of the figures belongs to the process that forked."""
        if self._web is not None:
            self._web.close()

    def _memory(self) -> dict[str, float]:
        """Bytes of memory by kind of process."""
        found = {"warm": float(memory_of(os.getpid())), "node": float(memory_of(self._pid))}
        return {**found, "apps": float(sum(memory_of(fork.pid) for fork in self._forks))}

    def resume(self, number: int = 0, frame: FrameType | None = None) -> None:
        """It works; or both processes were stopped, and go on."""
        self._patience = time.monotonic() + SILENCE

    def serve(self) -> Verdict:
        """Answer its messages until it ends or can do nothing more; why that is."""
        stuck = None
        try:
            with runtime_client(self._address) as runtime:
                while not self._stopped and self._heard.verdict is None and self._running():
                    self._collect()
                    self._look(runtime)
                    if self._web is not None:
                        self._web.answer()
                    time.sleep(INTERVAL)
                    if time.monotonic() > self._drained:
                        raise Stuck(f"it did not answer within {DRAINING:.0f} s when it was asked to end")
        except Stuck as why:
            stuck = Verdict(AGAIN, str(why))
            self._ask()
        finally:
            self._end()
        self._heard.read()
        if self._stopped or self._drained < inf:
            return Verdict(max(0, self._code or 0), "it was asked to")
        return stuck or self._heard.verdict or Verdict(AGAIN, f"its process ended with exit code {self._code}")

    def _look(self, runtime: Any) -> None:
        """Fork for a message that waits; `Stuck` if the node has not been seen to work for too long."""
        looks = self._heard.looks
        self._heard.read()
        token, answers = _next_message(runtime)
        if token is not None:
            self._forks.append(Fork(self._address, token, self._let_go))
        self._figures.busy = len(self._forks)
        if answers and (self._forks or self._heard.looks != looks):
            self.resume()
        if time.monotonic() > self._patience:
            raise Stuck(f"it has neither looked for messages nor had one for {SILENCE:.0f} s")

    def _collect(self) -> None:
        """Bury the forks that have ended."""
        for fork in list(self._forks):
            if (code := fork.ended()) is not None:
                self._forks.remove(fork)
                self._figures.ended(fork.close(code))

    def _running(self) -> bool:
        """Whether the node's process has not ended; else its exit code is known."""
        if self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._code = None if pid == 0 else os.waitstatus_to_exitcode(status)
        return self._code is None

    def _ask(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ask the node's process to end."""
        if self._running():
            os.kill(self._pid, how)

    def _end(self) -> None:
        """Wait for the end of the node's process, and force it if that takes long."""
        until = time.monotonic() + GRACE
        while self._running():
            if time.monotonic() > until:
                self._ask(signal.SIGKILL)
            time.sleep(INTERVAL / 2)


def main(words: list[str]) -> int:
    """Run a node's command, and an app for each of its messages, until it ends; its exit code."""
    if "--port" not in words or any(word.startswith("--ssl") for word in words):
        raise SystemExit(USAGE)
    if Path(words[0]).name != "flower-supernode":
        raise SystemExit(USAGE)
    os.environ[LIFE] = secrets.token_hex(8)
    node = Node(words, f"127.0.0.1:{words[words.index('--port') + 1]}")
    for number in STOPPING:
        signal.signal(number, node.stop)
    signal.signal(signal.SIGCONT, node.resume)
    for name in LOADED:
        importlib.import_module(name)
    code_of_fedloom()  # of what was loaded, whatever is installed later
    pace_pulls()
    gc.collect()
    gc.freeze()  # what was loaded stays in memory pages that all forks share
    verdict = node.serve()
    log.warning("the node has ended: %s", verdict.why)
    return verdict.code


def _next_message(runtime: Any) -> tuple[str | None, bool]:
    """The token of a message that waits for its app, if one does; and whether the node's own API answers."""
    import httpx
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType

    try:
        found = runtime.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
    except httpx.HTTPError:  # the node is not up yet, or its API has died
        return None, False
    return (str(found.token) if found.HasField("task") and found.token else None), True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
