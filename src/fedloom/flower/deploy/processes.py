"""Processes that are stopped together with all processes that they start."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self

MARK = "FEDLOOM_TRIAL"  # in the environment of all processes that a trial starts, directly or not
GRACE = 6.0  # seconds to end in good order
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PROC = Path("/proc")  # without it only process groups are found


@dataclass
class Processes:
    """Running commands, each the head of its own process group, with its output in a file."""

    folder: Path  # of their output
    environment: Mapping[str, str]
    mark: str = field(default_factory=lambda: secrets.token_hex(16))
    heads: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)  # most bytes of memory, updated by `measure`

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *problem: object) -> None:
        self.stop()

    def start(self, name: str, command: Sequence[str], extra: Mapping[str, str] | None = None) -> None:
        """Start a command, in place of one with this name that has ended."""
        environment = {**self.environment, **(extra or {}), MARK: self.mark}
        with self.output(name).open("ab") as output:
            self.heads[name] = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def output(self, name: str) -> Path:
        """The file with a command's output."""
        return self.folder / f"{name}.log"

    def last_lines(self, name: str, lines: int = 5) -> str:
        """The end of a command's output."""
        file = self.output(name)
        return "\n".join(file.read_text(errors="replace").splitlines()[-lines:]) if file.exists() else ""

    def running(self, name: str) -> bool:
        """Whether a command has not ended."""
        return self.heads[name].poll() is None

    def signal(self, name: str, number: int) -> None:
        """Signal a command's group, unless its head has ended: then its number may be another process's."""
        if self.running(name):
            with suppress(ProcessLookupError):
                os.killpg(self.heads[name].pid, number)

    def kill(self, name: str) -> None:
        """End a command's group at once, as a power cut would."""
        self.signal(name, signal.SIGKILL)
        self.heads[name].wait()

    def measure(self) -> None:
        """Update `peaks` with the memory that each group holds now."""
        groups = {process.pid: name for name, process in self.heads.items()}
        sizes = dict.fromkeys(groups.values(), 0)
        for number, group in _all_processes():
            if group in groups:
                sizes[groups[group]] += memory_of(number)
        for name, size in sizes.items():
            self.peaks[name] = max(size, self.peaks.get(name, 0))

    def stop(self) -> None:
        """End all commands and all that they started: in good order within `GRACE` seconds, then by SIGKILL."""
        with signals_handled(STOPPING, signal.SIG_IGN):
            for name in self.heads:
                self.signal(name, signal.SIGCONT)  # a stopped process would not get SIGTERM
                self.heads[name].send_signal(signal.SIGINT)  # at SIGTERM a node would first answer its message
            until = time.monotonic() + GRACE
            while time.monotonic() < until and (any(map(self.running, self.heads)) or marked_processes(self.mark)):
                time.sleep(0.05)
            for name in self.heads:
                self.signal(name, signal.SIGKILL)
            until = time.monotonic() + GRACE
            while (left := marked_processes(self.mark)) and time.monotonic() < until:
                for number in left:
                    with suppress(ProcessLookupError):
                        os.kill(number, signal.SIGKILL)
                time.sleep(0.05)
            for process in self.heads.values():
                process.wait()


def _all_processes() -> Iterator[tuple[int, int]]:
    """Every process and its group."""
    for file in PROC.glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            fields = file.read_text().rpartition(")")[2].split()  # what is before them, a name, may have any letters
            yield int(file.parent.name), int(fields[2])


def memory_of(number: int) -> int:
    """Bytes that a process holds; of pages shared by several processes, its part."""
    with suppress(OSError, ValueError, IndexError):
        lines = (PROC / str(number) / "smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return 0


def marked_processes(mark: str) -> list[int]:
    """The living processes with this mark in their environment."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for folder in PROC.glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


@contextmanager
def signals_handled(numbers: Sequence[signal.Signals], handler: Any) -> Iterator[None]:
    """Handle signals in this way within; only the main thread can, elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


def stopped_by_signals() -> AbstractContextManager[None]:
    """Within, SIGTERM and a closed terminal raise an exception, as Ctrl-C does, so that `Processes` are stopped."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    return signals_handled((signal.SIGTERM, signal.SIGHUP), end)
