"""A lock on a run folder, held by one process and released by the system however that ends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedloom.errors import BadExperiment

PATIENCE = 1.0  # seconds; who looks whether a file is locked holds it for a moment


@contextmanager
def locked(file: Path, what: str) -> Iterator[None]:
    """Lock `file` while the block runs; refuse to if another process has locked it (`what` is in use)."""
    import fcntl  # not on every system, and only used here

    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        until = time.monotonic() + PATIENCE
        while not _taken(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > until:
                owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
                raise BadExperiment(
                    f"{what} is in use by another run (process {owner}); wait for it, stop it or name another folder."
                )
            time.sleep(PATIENCE / 20)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)  # which unlocks


def in_use(file: Path) -> bool:
    """Whether a process, this one included, has locked `file`."""
    import fcntl

    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _taken(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _taken(descriptor: int, how: int) -> bool:
    """Lock an open file, if it is free."""
    import fcntl

    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
