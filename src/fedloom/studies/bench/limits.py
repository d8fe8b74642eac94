"""A device's limits: speed of a plain matrix product and of a plain copy; and the peak of memory."""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from fedloom.data.sampling import stream

SECONDS = 0.2  # for the repetitions of each measurement
SIDE = {"cpu": 1024, "cuda": 8192}  # rows and columns of the matrices
COPIED = {"cpu": 2**26, "cuda": 2**30}  # bytes, far more than any cache
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def wait(device: torch.device) -> None:
    """Wait until the device has done everything it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def machine(device: torch.device) -> dict[str, Any]:
    """The device, cores and versions that figures were measured with."""
    name = platform.processor() or platform.machine()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    facts = {"device": device.type, "name": name, "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    return {**facts, "torch": torch.__version__, "python": platform.python_version()}


def limits(device: torch.device, side: int | None = None, copied: int | None = None) -> dict[str, float]:
    """FLOP/s of a matrix product by precision, and bytes/s of a copy, where reads and writes both count."""
    side, copied = side or SIDE[device.type], copied or COPIED[device.type]
    numbers = stream(0, "limits").standard_normal((side, side), dtype="float32")
    square = torch.from_numpy(numbers).to(device)
    found = {}
    for name in ("float32", "tf32", "bf16") if device.type == "cuda" else ("float32",):
        with _products(name):
            found[name] = 2 * side**3 / _seconds(_product, square.bfloat16() if name == "bf16" else square)
    room = torch.zeros(copied, dtype=torch.uint8, device=device)  # its pages exist after a first, untimed copy
    found["copy"] = 2 * copied / _seconds(room.copy_, torch.ones_like(room))
    return found


@contextmanager
def _products(name: str) -> Iterator[None]:
    """Compute float32 products in this precision."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32" if name == "tf32" else "ieee"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def _product(square: Tensor) -> Tensor:
    return square @ square


def _seconds(call: Callable[[Tensor], Tensor], value: Tensor) -> float:
    """The median of five repetitions, each of several calls if one call is short."""
    call(value)
    wait(value.device)
    began = time.perf_counter()
    call(value)
    wait(value.device)
    repeat = max(1, int(SECONDS / 5 / max(time.perf_counter() - began, 1e-6)))
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(repeat):
            call(value)
        wait(value.device)
        taken.append((time.perf_counter() - began) / repeat)
    return median(taken)


class PeakMemory:
    """Peak memory since the object was created: of a GPU, or of the process where Linux reports it."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._resident = device, 0
        gc.collect()  # release what was measured before
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        else:
            try:
                CLEAR.write_text("5")  # resets the peak
                self._resident = _status("VmRSS")
            except OSError:  # another system, or a locked one
                self._resident = 0

    def bytes(self) -> int | None:
        """The peak in bytes; on a CPU in addition to the memory at the start. None: not known, or no addition."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        beyond = _status("VmHWM") - self._resident if self._resident else 0
        return beyond if beyond > 0 else None


def _status(name: str) -> int:
    """One of the process's memory sizes in bytes, from /proc."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])
