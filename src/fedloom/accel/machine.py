"""What may this process use of its machine? Cores and memory, as the system and its limits say, in words too."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from fedloom.errors import BadExperiment

CGROUP = Path("/sys/fs/cgroup")  # limits of a container, where there are any
NEIGHBOURS = ("LOCAL_WORLD_SIZE", "PYTEST_XDIST_WORKER_COUNT")  # torchrun's, pytest-xdist's
BATCH = 1024  # examples at a time, on a CPU


def cache_folder() -> Path:
    """Where data sets, choices and compiled code are kept from run to run."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedloom"


def cores() -> int:
    """Cores for this process: those it may run on and has time for, shared with processes started beside it."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _read(CGROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        found = min(found, -(-int(quota) // max(1, int(period))))
    together = max(_count(os.environ.get(name, "")) for name in NEIGHBOURS)
    return max(1, found // together)


def free_memory() -> int:
    """Bytes of memory that can be taken without pushing anything out."""
    fields = dict(line.split(":", 1) for line in _read(Path("/proc/meminfo")).splitlines() if ":" in line)
    if "MemAvailable" in fields:
        free = 1024 * int(fields["MemAvailable"].split()[0])
    else:  # another system: half of what it has
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    limit, used = _read(CGROUP / "memory.max"), _read(CGROUP / "memory.current")
    return min(free, max(0, int(limit) - int(used))) if limit.isdigit() and used.isdigit() else free


def _count(text: str) -> int:
    return max(1, int(text)) if text.isdigit() else 1


def _read(path: Path) -> str:
    """A small file of the system's; empty where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """Seconds for people."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def at_once(x: Tensor) -> int:
    """How many examples like these [n, ...] to look at together: a GPU wants many, a CPU's cache few."""
    return BATCH if x.device.type == "cpu" else max(BATCH, 2**25 // x[0].numel())


def device_of(name: str) -> torch.device:
    """`auto` takes a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadExperiment(f"device is '{name}'; expected auto, cpu, cuda or cuda:0 and so on.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadExperiment(f"device is '{name}', but no CUDA device is present; use cpu or auto.")
    if device.type not in ("cpu", "cuda"):
        raise BadExperiment(f"device is '{name}'; fedloom runs on cpu and cuda.")
    return device


@cache
def own_kernels(device: str) -> bool:
    """Can kernels of our own run there? Triton comes with torch for CUDA."""
    return device == "cuda" and find_spec("triton") is not None
