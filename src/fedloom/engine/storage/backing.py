"""Memory for rows that may lie away from the device that trains: host memory, pinned for a GPU, or a file."""

from __future__ import annotations

import logging
import mmap
import os
import tempfile
import weakref
from contextlib import suppress
from typing import Literal

import torch
from torch import Tensor

from fedloom.errors import RunStopped

log = logging.getLogger("fedloom")

Place = Literal["device", "host", "file"]


class Backing:
    """Rows [n, ...] at a place; a file takes disk space only for reserved rows, and is gone when the process ends."""

    def __init__(
        self, count: int, shape: tuple[int, ...], dtype: torch.dtype, place: Place, device: torch.device
    ) -> None:
        self._row_bytes = torch.Size(shape).numel() * dtype.itemsize  # 0: clients have nothing of it
        self._file: int | None = None
        self._reserved = 0
        if place == "file":
            self._open(max(1, count * self._row_bytes))
            flat = torch.frombuffer(self._map, dtype=torch.uint8)[: count * self._row_bytes]
            self.rows: Tensor = flat.view(dtype).view(count, *shape)
        else:
            self.rows = torch.empty((count, *shape), dtype=dtype, device=device if place == "device" else "cpu")
        if place == "host" and device.type == "cuda" and self.rows.numel():
            self._pin(device)

    def _open(self, size: int) -> None:
        """Map a sparse file without a name, in the folder for temporary files (TMPDIR)."""
        with tempfile.TemporaryFile(prefix="fedloom-") as file:
            file.truncate(size)
            self._file = os.dup(file.fileno())
            self._map = mmap.mmap(self._file, size)
        weakref.finalize(self, os.close, self._file)

    def reserve(self, count: int) -> None:
        """Take disk space for the first `count` rows: a full disk is an error here, but a crash at a later write."""
        first, last = self._reserved * self._row_bytes, count * self._row_bytes
        if self._file is None or last <= first:
            return
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file, first, last - first)
        except OSError as problem:
            folder = tempfile.gettempdir()
            raise RunStopped(
                f"no room for {last - first:,} more bytes in '{folder}', where what exceeds memory is kept "
                f"({problem.strerror}); free some, or set TMPDIR to a folder on a larger disk."
            ) from None
        self._reserved = count

    def prefetch(self, first: int, last: int) -> None:
        """Begin to read rows `first` to `last` of a file from disk; rows in memory need nothing."""
        if self._file is None or last <= first or not self._row_bytes or not hasattr(self._map, "madvise"):
            return
        start = first * self._row_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_WILLNEED, start, last * self._row_bytes - start)

    def _pin(self, device: torch.device) -> None:
        """Pin the rows in place; torch rounds its own pinned memory up to a power of two, at worst twice as much."""
        runtime, start = torch.cuda.cudart(), self.rows.data_ptr()
        try:
            torch.cuda.check_error(int(runtime.cudaHostRegister(start, self.rows.nbytes, 0)))
        except RuntimeError as problem:
            log.warning("host memory is not pinned, which makes copies to the GPU slower: %s", problem)
            with suppress(RuntimeError):
                torch.zeros(1, device=device)  # or the next kernel reports the failure as its own
            return
        weakref.finalize(self, runtime.cudaHostUnregister, start)
