"""How are processes started so that all of them, and all that they start, can be stopped?"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Self

MARK = "FEDLOOM_TRIAL"  # in the environment of everything that a trial starts, and of what that starts
GRACE = 6.0  # seconds to end in good order
PROC = Path("/proc")  # where there is none, groups are all that is known


@dataclass
class Processes:
    """Commands that run, each the head of a process group of its own, with its output in a file."""

    folder: Path  # of their output
    environment: Mapping[str, str]
    mark: str = field(default_factory=lambda: secrets.token_hex(16))
    heads: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)  # bytes of memory, see `measure`

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *problem: object) -> None:
        self.stop()

    def start(self, name: str, command: Sequence[str], extra: Mapping[str, str] | None = None) -> None:
        """Start a command; one of the same name that ended before is forgotten."""
        environment = {**self.environment, **(extra or {}), MARK: self.mark}
        with self.output(name).open("ab") as output:
            self.heads[name] = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def output(self, name: str) -> Path:
        """The file that a command writes into."""
        return self.folder / f"{name}.log"

    def said(self, name: str, lines: int = 5) -> str:
        """The end of what a command wrote."""
        file = self.output(name)
        return "\n".join(file.read_text(errors="replace").splitlines()[-lines:]) if file.exists() else ""

    def running(self, name: str) -> bool:
        """Is its head still there?"""
        return self.heads[name].poll() is None

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a command and all of its group; when the head is gone its number may be another's."""
        if self.running(name):
            with suppress(ProcessLookupError):
                os.killpg(self.heads[name].pid, number)

    def kill(self, name: str) -> None:
        """End a command and all of its group at once, as a power cut would."""
        self.signal(name, signal.SIGKILL)
        self.heads[name].wait()

    def measure(self) -> None:
        """Note what memory each group holds now, if that is more than ever before."""
        groups = {process.pid: name for name, process in self.heads.items()}
        held = dict.fromkeys(groups.values(), 0)
        for number, group in _table():
            if group in groups:
                held[groups[group]] += _memory(number)
        for name, size in held.items():
            self.peaks[name] = max(size, self.peaks.get(name, 0))

    def stop(self) -> None:
        """End everything, in good order where that is quick; nothing is left, whatever state it was in."""
        with unmoved():
            for name in self.heads:
                self.signal(name, signal.SIGCONT)  # one that was stopped could not hear
                self.heads[name].terminate()
            until = time.monotonic() + GRACE
            while time.monotonic() < until and (any(map(self.running, self.heads)) or marked(self.mark)):
                time.sleep(0.05)
            for name in self.heads:
                self.signal(name, signal.SIGKILL)
            until = time.monotonic() + GRACE
            while (left := marked(self.mark)) and time.monotonic() < until:
                for number in left:
                    with suppress(ProcessLookupError):
                        os.kill(number, signal.SIGKILL)
                time.sleep(0.05)
            for process in self.heads.values():
                process.wait()


def _table() -> Iterator[tuple[int, int]]:
    """Every process and its group."""
    for file in PROC.glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            yield (
                int(file.parent.name),
                int(file.read_text().rpartition(")")[2].split()[2]),
            )  # the name may hold anything


def _memory(number: int) -> int:
    """Bytes that a process holds; of pages that several hold, its part."""
    with suppress(OSError, ValueError, IndexError):
        lines = (PROC / str(number) / "smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return 0


def marked(mark: str) -> list[int]:
    """The processes that carry a mark and are not dead yet."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for folder in PROC.glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def command(name: str) -> str:
    """A command that was installed beside this Python."""
    return str(Path(sys.executable).parent / name)


@contextmanager
def unmoved() -> Iterator[None]:
    """Signals that ask to stop are not heard: it is being done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """SIGTERM and a closed terminal end this process as Ctrl-C does, so that what it started is stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
