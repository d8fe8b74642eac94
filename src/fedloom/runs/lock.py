"""A lock on a run folder, held by one process and released by the system however that ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedloom.errors import BadExperiment


@contextmanager
def locked(file: Path, what: str) -> Iterator[None]:
    """Lock `file` while the block runs; refuse to if another process has locked it (`what` is in use)."""
    import fcntl  # not on every system, and only used here

    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise BadExperiment(
                f"{what} is in use by another run (process {owner}); wait for it, stop it or name another folder."
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)  # which unlocks
