"""Freed memory stays with the process: glibc returns large blocks to the system otherwise, and asks for them anew.

A block fresh from the system is zeroed page by page at first touch, which costs more than filling it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM, _MAPPED = -1, -4  # glibc's M_TRIM_THRESHOLD and M_MMAP_MAX
_ALL, _USUAL_TRIM, _USUAL_MAPPED = 2**31 - 1, 128 * 1024, 65536


@contextmanager
def kept_memory() -> Iterator[bool]:
    """Keep freed blocks in the process meanwhile; yields False where the C library is not glibc."""
    library = ctypes.CDLL(None)
    known = hasattr(library, "mallopt") and hasattr(library, "malloc_trim")
    if known:
        library.mallopt(_MAPPED, 0)
        library.mallopt(_TRIM, _ALL)
    try:
        yield known
    finally:
        if known:
            library.mallopt(_MAPPED, _USUAL_MAPPED)
            library.mallopt(_TRIM, _USUAL_TRIM)
            library.malloc_trim(0)
