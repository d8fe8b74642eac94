"""Real processes that begin warm: forked from one that has torch and fedloom loaded, and never runs anything itself."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pyarrow.parquet as pq
import scipy.optimize
import sklearn.datasets
import torch
import torch.fx.experimental.symbolic_shapes

import fedloom.cli.main
import fedloom.cli.show
import fedloom.runs.play

WARM = (
    scipy.optimize,
    sklearn.datasets,
    torch.fx.experimental.symbolic_shapes,
    fedloom.runs.play,
    fedloom.cli.show,
)  # slow ones

torch.set_num_threads(1)

CLOCK = ("wall_seconds", "evaluation_seconds", "personal_seconds")


def child(work: Callable[[], object], log: Path) -> int:
    """Start `work` in a process of its own, its words in `log`; the process's id."""
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for stream in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        work()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.stdout.flush()
        os._exit(code)


def command(*words: str) -> Callable[[], None]:
    """`fedloom WORDS`, as the installed command runs it."""

    def work() -> None:
        sys.argv = ["fedloom", *words]
        fedloom.cli.main.main()

    return work


def ended(pid: int, limit: float = 60.0) -> int:
    """A process's exit code when it is over, negative for the signal that killed it; one that hangs is a failure."""
    for _ in range(int(limit / 0.005)):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise TimeoutError(f"process {pid} was not over after {limit} seconds")


def result_of(run: Path) -> str:
    """One hash over all that a run leaves: the model, both tables and what was kept; only the clock is left out."""
    digest = sha256((run / "model.safetensors").read_bytes())
    for file in ("rounds.parquet", "clients.parquet"):
        columns = pq.ParquetFile(run / file).read().to_pydict()
        digest.update(repr([(n, values) for n, values in columns.items() if n not in CLOCK]).encode())
    if (run / "kept.safetensors").exists():
        digest.update((run / "kept.safetensors").read_bytes())
    return digest.hexdigest()
