"""A fuzzing campaign: a process of its own that reads inputs, and a summary counted in memory that both share."""

from __future__ import annotations

import mmap
import os
import resource
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import atheris
import numpy as np

Read = Callable[[bytes], None]
EVERY = 8  # readings
INTERRUPTED = 72  # libFuzzer's exit code
Mutate = Callable[[bytes, int, int], bytes]  # (input, longest, seed) -> another input


class Tally:
    """What was seen: how often each outcome, and the most memory that one reading took."""

    def __init__(self, outcomes: tuple[str, ...]) -> None:
        self.outcomes = outcomes
        self.counts = np.frombuffer(mmap.mmap(-1, 8 * (len(outcomes) + 2)), np.int64)  # the last two: bytes, per mille

    def count(self, outcome: str) -> None:
        """One more."""
        self.counts[self.outcomes.index(outcome)] += 1

    @contextmanager
    def measured(self, cap: int) -> Iterator[None]:
        """Refuse a reading that takes twice its cap or more; measuring is slow, so one in `EVERY` is measured."""
        if self.counts[:-2].sum() % EVERY:
            yield
            return
        tracemalloc.start()
        yield
        took = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        self.counts[-2:] = np.maximum(self.counts[-2:], (took, 1000 * took // cap))
        assert took < 2 * cap, f"reading took {took} bytes; the cap is {cap}"

    def lines(self) -> list[str]:
        """As text."""
        *counts, peak, caps = self.counts.tolist()
        seen = [f"{name} {count}" for name, count in zip(self.outcomes, counts) if count]
        return [
            f"executions {sum(counts)}: {', '.join(seen)}",
            f"most memory of one reading {peak} bytes, {caps / 1000:.2f} caps (below 2 allowed, 1 in {EVERY} measured)",
        ]


def fuzz(read: Read, mutate: Mutate, seeds: Callable[[Path], None], arguments: list[str], tally: Tally) -> int:
    """Let atheris call `read`, with seeds in a folder of their own; print a summary and return the exit code."""
    with tempfile.TemporaryDirectory() as scratch:
        seeds(Path(scratch))
        began, child = perf_counter(), os.fork()
        if not child:  # libFuzzer ends its process by itself
            options = ["-timeout=10", "-reduce_inputs=0", *arguments, scratch]
            atheris.Setup([sys.argv[0], *options], read, custom_mutator=mutate)
            atheris.Fuzz()
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024  # MiB
    print(*tally.lines(), f"seconds {perf_counter() - began:.0f}, resident memory at most {most} MiB", sep="\n")
    words = {0: "no finding", INTERRUPTED: "no finding until it was interrupted"}
    print(words.get(status, f"a finding: exit code {status}, the input is in ./crash-* or beside it"), flush=True)
    return 0 if status in words else status
