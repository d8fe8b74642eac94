"""When a run is saved: by the clock, in a thread and from a copy; or by rounds, before the next round begins."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from fedloom.errors import BadExperiment, RunStopped
from fedloom.files import writing
from fedloom.runs.checkpoint import store
from fedloom.runs.checkpoint.snapshot import Snapshot

COPIED = 2**30  # bytes; a larger snapshot is not copied: the run waits while it is written
SECONDS = {"s": 1, "m": 60, "h": 3600}
SHARE = 0.1  # at most this share of the time goes into saving by the clock


@dataclass(frozen=True)
class Checkpoints:
    """A run is saved every `rounds` rounds, every `seconds` seconds, or both (None: not by that), and at its end."""

    rounds: int | None = None
    seconds: float | None = 30.0  # more if saving takes longer than a tenth of it
    keep: int = 2  # how many of the latest are kept

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("keep", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise BadExperiment(f"{name} (of checkpoints) is {value}; it is at least {least}.")
        if self.seconds is not None and not self.seconds >= 0:
            raise BadExperiment(f"seconds (between checkpoints) is {self.seconds}; it must not be negative.")


def checkpoints_of(text: str, keep: int = Checkpoints.keep) -> Checkpoints:
    """The values of the options `--checkpoint-every` and `--keep`."""
    rounds, seconds = None, None
    for part in text.replace(" ", "").lower().split(","):
        number, unit = part.rstrip("smh"), part[len(part.rstrip("smh")) :]
        if part == "end":
            continue
        if unit in SECONDS and number.replace(".", "", 1).isdigit():
            seconds = float(number) * SECONDS[unit]
        elif part.isdigit():
            rounds = int(part)
        else:
            raise BadExperiment(f"--checkpoint-every got '{text}'; expected 30s, 5m, 1h, a number of rounds or end.")
    return Checkpoints(rounds, seconds, keep)


class Saver:
    """Saves a run into its folder."""

    def __init__(self, folder: Path, when: Checkpoints, facts: dict[str, Any], good: list[Path]) -> None:
        self._run, self._folder, self._when, self._facts = folder, folder / "checkpoint", when, facts
        self._good = good  # checkpoints that stay, the newest last
        self._saved = 0  # the round of the newest checkpoint
        self._thread: Thread | None = None
        self._problem: BaseException | None = None
        self._ended, self._took = time.monotonic(), 0.0

    def begin(self, number: int) -> None:
        """Set the round after which the run starts."""
        self._saved = number

    def offer(self, number: int, take: Callable[[], Snapshot]) -> None:
        """Save round `number`, which has just ended, if it is due."""
        if self._problem is not None:
            self.wait()
        if self._when.rounds is not None and number - self._saved >= self._when.rounds:
            self.end(number, take)  # on the disk before the next round: a kill costs at most one round
        elif self._due() and not self._busy():
            self.wait()
            self._start(take())

    def end(self, number: int, take: Callable[[], Snapshot]) -> None:
        """Save this round and wait until it is on the disk, at the end of a run or when it stops between two rounds."""
        self.wait()
        if number > self._saved:
            self._write(take())
            self.wait()

    def wait(self) -> None:
        """Wait until nothing is being written; an error in writing is raised here."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def _busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def _due(self) -> bool:
        """Whether it is time to save by the clock."""
        if self._when.seconds is None:
            return False
        return time.monotonic() - self._ended >= max(self._when.seconds, self._took * (1 / SHARE - 1))

    def _start(self, snapshot: Snapshot) -> None:
        """Begin to save a snapshot, in a thread if it is small enough to be copied."""
        self._saved = snapshot.round
        if snapshot.size > COPIED:
            self._write(snapshot)
            return
        began = time.monotonic()
        snapshot = snapshot.copied()
        self._thread = Thread(target=self._write, args=(snapshot, began), name="fedloom checkpoint", daemon=True)
        self._thread.start()

    def _write(self, snapshot: Snapshot, began: float | None = None) -> None:
        """Save, and remove all but the latest checkpoints; an exception is kept for `wait`."""
        began = time.monotonic() if began is None else began
        try:
            with writing(self._run):
                path = store.save(self._folder, snapshot.round, snapshot.files(), self._facts)
                self._good = [*(one for one in self._good if one != path), path][-self._when.keep :]
                store.tidy(self._folder, self._good)
        except Exception as problem:  # noqa: BLE001  in a thread: `wait` raises it in the run
            stopped = isinstance(problem, RunStopped)
            self._problem = problem if stopped else RunStopped(f"saving a checkpoint failed: {problem!r}")
        self._saved, self._ended = snapshot.round, time.monotonic()
        self._took = self._ended - began
