"""Where do rows lie that need not be where clients train? In the host's memory, pinned for a GPU, or in a file."""

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
    """Rows [n, ...] at a place; a file takes disk only for rows that are reserved, and vanishes with the process."""

    def __init__(
        self, count: int, shape: tuple[int, ...], dtype: torch.dtype, place: Place, device: torch.device
    ) -> None:
        self._each = max(1, torch.Size(shape).numel() * dtype.itemsize)  # bytes of a row
        self._file: int | None = None
        self._reserved = 0
        if place == "file":
            self._open(max(1, count * self._each))
            flat = torch.frombuffer(self._map, dtype=torch.uint8)[: count * self._each]
            self.rows: Tensor = flat.view(dtype).view(count, *shape)
        else:
            self.rows = torch.empty((count, *shape), dtype=dtype, device=device if place == "device" else "cpu")
        if place == "host" and device.type == "cuda" and self.rows.numel():
            self._pin(device)

    def _open(self, size: int) -> None:
        """A sparse file without a name, in the folder for temporary files (TMPDIR)."""
        with tempfile.TemporaryFile(prefix="fedloom-") as file:
            file.truncate(size)
            self._file = os.dup(file.fileno())
            self._map = mmap.mmap(self._file, size)
        weakref.finalize(self, os.close, self._file)

    def reserve(self, count: int) -> None:
        """Take disk for the first `count` rows now: a full disk is an error here, and a crash at a later touch."""
        first, last = self._reserved * self._each, count * self._each
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
        """Rows `first` to `last` will be read: a file's begin to be fetched from disk."""
        if self._file is None or last <= first or not hasattr(self._map, "madvise"):
            return
        start = first * self._each // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_WILLNEED, start, last * self._each - start)

    def _pin(self, device: torch.device) -> None:
        """Pin memory where it lies; torch's own pinned memory comes in powers of two, twice as much at worst."""
        runtime, start = torch.cuda.cudart(), self.rows.data_ptr()
        try:
            torch.cuda.check_error(int(runtime.cudaHostRegister(start, self.rows.nbytes, 0)))
        except RuntimeError as problem:
            log.warning("host memory is not pinned, which makes copies to the GPU slower: %s", problem)
            with suppress(RuntimeError):
                torch.zeros(1, device=device)  # or the next kernel reports the failure as its own
            return
        weakref.finalize(self, runtime.cudaHostUnregister, start)
