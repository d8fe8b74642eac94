"""Cores, memory, device and folders that this process may use, and sizes and durations in words."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from fedloom.errors import BadExperiment

CGROUP = Path("/sys/fs/cgroup")  # limits of a container, if there are any
GROUP = Path("/proc/self/cgroup")  # the name of this process's own group
NEIGHBOURS = ("LOCAL_WORLD_SIZE", "PYTEST_XDIST_WORKER_COUNT")  # torchrun, pytest-xdist
BATCH = 1024  # examples evaluated at a time on a CPU


def cache_folder() -> Path:
    """Folder in which data sets, measured choices and compiled code are kept from run to run."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedloom"


def cores() -> int:
    """Cores for this process: what affinity and container allow, divided by the processes started with it."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _read(CGROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        found = min(found, -(-int(quota) // max(1, int(period))))
    together = max(_count(os.environ.get(name, "")) for name in NEIGHBOURS)
    return max(1, found // together)


def free_memory() -> int:
    """Bytes of memory that can be taken without swapping."""
    fields = dict(line.split(":", 1) for line in _read(Path("/proc/meminfo")).splitlines() if ":" in line)
    if "MemAvailable" in fields:
        free = 1024 * int(fields["MemAvailable"].split()[0])
    else:  # not Linux: half of all memory
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    for group in _groups():
        limit, used = _read(group / "memory.max"), _read(group / "memory.current")
        if limit.isdigit() and used.isdigit():
            free = min(free, max(0, int(limit) - int(used)))
    return free


def _groups() -> list[Path]:
    """The folders with this process's limits: of its own group, such as a service's, and of those that it is in."""
    own = next((line[3:] for line in _read(GROUP).splitlines() if line.startswith("0::")), "/")
    folder = CGROUP / own.strip("/")
    return [one for one in (folder, *folder.parents) if one.is_relative_to(CGROUP)]


def _count(text: str) -> int:
    return max(1, int(text)) if text.isdigit() else 1


def _read(path: Path) -> str:
    """Text of a small system file; empty where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def size(count: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """Format a number of seconds."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def at_once(x: Tensor, answer: int = 1) -> int:
    """How many examples like these [n, ...] to evaluate together: many on a GPU, as many as a cache holds on a CPU.

    `answer`: the numbers that a network answers one example with, of which 2^26 are held at once at most.
    """
    batch = BATCH if x.device.type == "cpu" else max(BATCH, 2**25 // max(1, x[0].numel()))
    return max(1, min(batch, 2**26 // answer))


def device_of(name: str) -> torch.device:
    """The torch device of this name; `auto` is a GPU if there is one."""
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
    """Whether our Triton kernels run on this type of device; torch for CUDA brings Triton."""
    return device == "cuda" and find_spec("triton") is not None
