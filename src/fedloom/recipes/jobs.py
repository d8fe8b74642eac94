"""Runs in processes of their own: on a GPU small runs wait for the calls that one core makes, and there are more cores.

A helper is `python -m fedloom.recipes.helper`. It loads while its parent plans, is then sent one group of runs after
another as a line of JSON, and answers with lines: rows of rounds, words to say, and at last what became of the group.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from fedloom.experiment import Experiment

Group = list[tuple[str, Experiment]]  # names and experiments
MOST = 4  # helpers, unless more are asked for: a GPU that works without a break gains nothing from others


def jobs_for(device: str, cores: int) -> int:
    """How many helpers are worth their memory: several where a GPU does the work and cores are idle."""
    return max(1, min(MOST, cores // 4)) if device == "cuda" else 1


class Helpers:
    """Processes that wait for work; none of them outlives a `with` block."""

    def __init__(self, count: int, out: Path, device: str, data_dir: Path | None) -> None:
        facts = {"out": str(out), "device": device, "data_dir": None if data_dir is None else str(data_dir)}
        order = json.dumps({**facts, "share": 1 / count})
        command = [sys.executable, "-m", "fedloom.recipes.helper", order]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
        ]

    def __enter__(self) -> Helpers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()  # finished runs are on the disk
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    assert pipe is not None
                    pipe.close()

    def play(self, groups: Sequence[Group], hear: Callable[[dict[str, Any]], None], late: Callable[[], bool]) -> int:
        """Play the groups, whoever is free the next; returns how many runs it was too `late` for.

        `hear` is told everything that helpers say; it is called by one thread at a time.
        """
        waiting: SimpleQueue[Group] = SimpleQueue()
        for group in sorted(groups, key=lambda group: -sum(one.rounds for _, one in group)):  # the longest first
            waiting.put(group)
        said: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        threads = [
            Thread(target=_serve, args=(process, waiting, said, late), daemon=True) for process in self._processes
        ]
        for thread in threads:
            thread.start()
        going = len(threads)
        while going:
            words = said.get()
            if words is None:
                going -= 1
            else:
                hear(words)
        left = 0
        while not waiting.empty():
            left += len(waiting.get())
        return left


def _serve(
    process: subprocess.Popen[str],
    waiting: SimpleQueue[Group],
    said: SimpleQueue[dict[str, Any] | None],
    late: Callable[[], bool],
) -> None:
    """Give a helper one group after another, and pass on what it says; None: it gets no more."""
    try:
        while not late():
            group = waiting.get_nowait()
            try:
                over = _played(process, group, said)
            except (OSError, ValueError):
                over = False
            if not over:
                why = f"the process that ran it ended with exit code {process.wait()}"
                said.put({"ran": 0, "failed": {name: why for name, _ in group}})
                return
    except Empty:
        return
    finally:
        said.put(None)


def _played(process: subprocess.Popen[str], group: Group, said: SimpleQueue[dict[str, Any] | None]) -> bool:
    """Was the group played to its end?"""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([(name, one.model_dump(mode="json")) for name, one in group]) + "\n")
    process.stdin.flush()
    for line in process.stdout:
        words = json.loads(line)
        said.put(words)
        if "ran" in words:
            return True
    return False


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
