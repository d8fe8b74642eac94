"""Who plays beside this process? Others on the same device, started early, given the longest group that waits.

They talk in lines of JSON over their standard input and output; results do not travel, the store has them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from threading import Condition, Thread, current_thread
from typing import Any, Self

from fedloom.accel.machine import COMPANY
from fedloom.runs.experiment import Experiment
from fedloom.studies.recipes.groups import Group

Facts = dict[str, Any]

GRACE = 2.0  # seconds between a process's last word and its end


class Helper:
    """One such process."""

    def __init__(self, first: Facts, count: int) -> None:
        self.group: Group | None = None  # that it plays
        self.ready = False
        self.thread: Thread | None = None  # that listens to it
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        path = os.pathsep.join(each for each in sys.path if each)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fedloom.studies.recipes.helper"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._errors, text=True, encoding="utf-8",
            env={**os.environ, "PYTHONPATH": path, COMPANY: str(count)},
            start_new_session=True,  # Ctrl-C is for whoever started it
        )  # fmt: skip
        self.send(first)

    def send(self, facts: Facts) -> None:
        """A line for it; one that is gone is noticed by whoever listens to it."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.write(json.dumps(facts) + "\n")
            self.process.stdin.flush()

    def heard(self) -> Iterator[Facts]:
        """All that it says, until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield json.loads(line)

    def close(self) -> None:
        """Wait until it is gone."""
        self.process.wait()
        if self.thread is not None and self.thread is not current_thread():
            self.thread.join()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):  # of a line that was never read
                if pipe is not None:
                    pipe.close()
        self._errors.close()

    def why(self) -> str:
        """How it ended, and the last that it said about it; one that only fell silent is ended."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE)
        self.process.kill()
        code = self.process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return how + (f" ({lines[-1].strip()})" if lines else "")


class Beside:
    """Processes that play groups beside this one, each heard by a thread; whoever is free takes the next group."""

    def __init__(self, first: Facts, hear: Callable[[Facts], None], may_begin: Callable[[], bool]) -> None:
        self._first, self._hear, self._may_begin = first, hear, may_begin
        self._changed = Condition()
        self._helpers: list[Helper] = []
        self._waiting: list[Group] = []
        self._later: list[Group] = []  # that had trouble beside others
        self._before = os.environ.get(COMPANY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.keep(0)
        os.environ.pop(COMPANY)
        if self._before is not None:
            os.environ[COMPANY] = self._before

    def grow(self, count: int, run: Experiment) -> None:
        """Have so many, at least; they load what they need, the data of `run` too, while this process does the same."""
        os.environ[COMPANY] = str(max(count, len(self._helpers)) + 1)
        while len(self._helpers) < count:
            helper = Helper({**self._first, "run": run.model_dump(mode="json")}, count + 1)
            with self._changed:
                self._helpers.append(helper)
            helper.thread = Thread(target=self._listen, args=(helper,), daemon=True)
            helper.thread.start()

    def keep(self, count: int) -> None:
        """Have so many, at most. What the others finished is in the store, which takes a run whole or not at all."""
        with self._changed:
            ending, self._helpers = self._helpers[count:], self._helpers[:count]
        for helper in ending:
            helper.process.kill()
        for helper in ending:
            helper.close()
        os.environ[COMPANY] = str(len(self._helpers) + 1)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._helpers)

    @property
    def busy(self) -> int:
        """How many of them play."""
        return sum(helper.group is not None for helper in self._helpers)

    def turns(self, groups: Sequence[Group]) -> Iterator[tuple[Group, bool]]:
        """What this process plays of the groups, and whether it is alone meanwhile; at the end all are over."""
        with self._changed:
            self._waiting = list(groups)
            if self._helpers:
                self._waiting.sort(key=lambda group: -group.seconds)
        while True:
            with self._changed:
                for helper in self._helpers:
                    self._give(helper)
                self._changed.wait_for(lambda: self._waiting or not self.busy)
                if self._waiting:
                    group, alone = self._waiting.pop(0), not self._helpers
                elif self._later:
                    group, alone = self._later.pop(0), True
                else:
                    return
            yield group, alone

    def put_off(self, group: Group) -> None:
        """Play it when all others are over."""
        with self._changed:
            self._later.append(group)

    def _give(self, helper: Helper) -> None:
        """The next group, if it can take one."""
        if helper.ready and helper.group is None and self._waiting and self._may_begin():
            helper.group = self._waiting.pop(0)
            runs = [(name, one.model_dump(mode="json")) for name, one in helper.group.runs]
            helper.send({"runs": runs})

    def _listen(self, helper: Helper) -> None:
        """Hear a helper until it ends; what it leaves undone is played later, by this process alone."""
        try:
            for facts in helper.heard():
                self._hear({**facts, "group": helper.group})
                with self._changed:
                    helper.ready = helper.ready or "ready" in facts
                    if "ran" in facts:
                        if facts["problem"] is not None and helper.group is not None:
                            self._later.append(helper.group)
                        helper.group = None
                    self._give(helper)
                    self._changed.notify_all()
        finally:
            self._bury(helper)

    def _bury(self, helper: Helper) -> None:
        """It says no more; until that is told it counts as playing, so that nobody else begins its group."""
        with self._changed:
            helper.ready, known = False, helper in self._helpers
        try:
            if known:  # else it was not wanted any more
                self._hear({"gone": helper.why(), "group": helper.group})
        finally:
            with self._changed:
                if known and helper.group is not None:
                    self._later.append(helper.group)
                helper.group = None
                self._helpers = [one for one in self._helpers if one is not helper]
                self._changed.notify_all()
            if known:
                helper.close()
