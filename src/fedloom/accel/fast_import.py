"""How are modules loaded quickly? Without looking for garbage meanwhile: they make many objects and throw few away."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No cyclic garbage is looked for meanwhile, and what was made counts as old: a tenth of PyTorch's loading time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            if not gc.get_freeze_count():  # nobody's frozen objects are thawed
                gc.freeze()  # with the next line: all objects are among the oldest, and none is visited now
                gc.unfreeze()
            gc.enable()
