"""What a node's process tells the process that started it, a line each: calls of the link, and why it ends."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import NamedTuple

CALL, END = "call", "end"
NOTHING = 0  # in place of a status: the link did not answer


class Verdict(NamedTuple):
    """How a node's process ended."""

    code: int  # exit code
    why: str  # one sentence


class Reports:
    """The node's end of a pipe. The process on the other end must be there: without it a node does nothing."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def call(self, looking: bool, status: int) -> None:
        """The link answered a call with this HTTP status; `looking`: it was the thread that looks for messages."""
        self._write(f"{CALL} {int(looking)} {status}")

    def end(self, verdict: Verdict) -> None:
        """The node ends."""
        with suppress(OSError):
            self._write(f"{END} {verdict.code} {' '.join(verdict.why.split())[:1000]}")

    def _write(self, line: str) -> None:
        os.write(self._descriptor, f"{line}\n".encode(errors="replace"))


class Heard:
    """The other end: what the node has said so far."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor, self._rest = descriptor, b""
        self.looks = 0  # calls of the thread that looks for messages
        self.status = NOTHING  # of the last call
        self.answered: float | None = None  # when the link last answered, by `time.time`
        self.verdict: Verdict | None = None

    def read(self) -> None:
        """Read the lines that have come."""
        with suppress(BlockingIOError):
            while data := os.read(self._descriptor, 2**16):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self._take(line.decode(errors="replace"))

    def _take(self, line: str) -> None:
        """Enter one line."""
        kind, first, rest = line.split(" ", 2)
        if kind == END:
            self.verdict = Verdict(int(first), rest)
            return
        self.looks += int(first)
        self.status = int(rest)
        if self.status != NOTHING:
            self.answered = time.time()
