"""The other end of `beside`: a process that plays the groups it is given and says how they go, a line of JSON each.

It ends when nobody is left to give it any: its input is closed, however the process that started it ends.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, TextIO

from fedloom.runs.experiment import Experiment
from fedloom.studies.recipes.groups import Group
from fedloom.studies.recipes.runner import Stage
from fedloom.studies.recipes.store import Store

EVERY = 0.25  # seconds between reports of rounds: each wakes the process that hears them
SHOWN = ("round", "accuracy", "loss", "training_loss")  # of a row


class Voice(logging.Handler):
    """Says what happens."""

    def __init__(self, out: TextIO) -> None:
        super().__init__(logging.WARNING)
        self._out, self._rows, self._said = out, list[tuple[str, int, dict[str, Any]]](), time.monotonic()

    def say(self, **facts: Any) -> None:
        """One line."""
        self._out.write(json.dumps(facts) + "\n")
        self._out.flush()

    def watch(self, name: str, seed: int, row: dict[str, Any]) -> None:
        """A round is over; several are reported together."""
        self._rows.append((name, seed, {key: row[key] for key in SHOWN}))
        if time.monotonic() - self._said > EVERY:
            self.report()

    def report(self) -> None:
        """The rounds that are not reported yet."""
        self.say(rows=self._rows)
        self._rows, self._said = [], time.monotonic()

    def emit(self, record: logging.LogRecord) -> None:
        """A warning is shown where the others are."""
        self.say(warning=record.getMessage())


def orders(lines: Iterable[str]) -> SimpleQueue[dict[str, Any]]:
    """What is asked of this process; at the end of it the process ends, whatever it is doing."""
    asked: SimpleQueue[dict[str, Any]] = SimpleQueue()

    def listen() -> None:
        for line in lines:
            asked.put(json.loads(line))
        os._exit(0)  # a run in another thread does not hold it up; what is finished is in the store

    Thread(target=listen, daemon=True).start()
    return asked


def main() -> None:
    """Be told of store, device and data, then play group after group."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else prints something does not speak in between
    voice, asked = Voice(out), orders(sys.stdin)
    logging.getLogger("fedloom").addHandler(voice)
    first = asked.get()
    folder = None if first["data_dir"] is None else Path(first["data_dir"])
    stage = Stage(Store(Path(first["out"])), first["device"], folder, voice.watch, lambda note: voice.say(note=note))
    stage.get_ready(Experiment(**first["run"]))
    voice.say(ready=True)
    while True:
        runs = [(name, Experiment(**facts)) for name, facts in asked.get()["runs"]]
        stage.ran, stage.failed = 0, {}
        problem = stage.attempt(Group(runs, runs[0][1].data.model_dump_json(), 0.0, 0.0), alone=False)
        voice.report()
        voice.say(ran=stage.ran, failed=stage.failed, problem=problem)


if __name__ == "__main__":
    main()
