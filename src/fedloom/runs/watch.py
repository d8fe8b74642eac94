"""What a run tells while it goes on: rows as rounds end, to a function or to callbacks, which may ask it to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedloom.accel.time_slots import time_slot

if TYPE_CHECKING:
    from fedloom.runs.experiment import Experiment
    from fedloom.runs.ledger import Ledger
    from fedloom.runs.result import Result

Watch = Callable[[dict[str, Any]], Any]  # called with every round's row; the run ends where it returns STOP
Tell = Callable[[str], None]  # called with notes for the user

STOP = "stop"
SHOWN_EVERY = 0.5  # seconds between readings of a GPU's results: each waits for the GPU


class Callback:
    """Someone who is told when a run begins, of its rounds, and when it ends; each method does nothing by itself."""

    def begin(self, experiment: Experiment, folder: Path | None) -> None:
        """Take note that a run begins, in its folder if it has one; it is prepared after that."""

    def round(self, row: dict[str, Any]) -> str | None:
        """Take note of a round's row; `"stop"` ends the run with this round."""

    def end(self, result: Result | None) -> None:
        """Take note of the result; None: the run stopped with an error, or was interrupted."""


class Calls:
    """The calls of a run's callbacks and of its watch function."""

    def __init__(self, callbacks: Sequence[Callback], watch: Watch | None) -> None:
        self.result: Result | None = None
        self._callbacks, self._watch = callbacks, watch

    @property
    def watch(self) -> Watch | None:
        """One function for all; None where nobody wants rows."""
        every = [*([] if self._watch is None else [self._watch]), *(one.round for one in self._callbacks)]
        if len(every) < 2:
            return every[0] if every else None
        return lambda row: STOP if STOP in [each(row) for each in every] else None

    @contextmanager
    def told(self, experiment: Experiment, folder: Path | None) -> Iterator[None]:
        """Tell callbacks that a run begins, and at last, the last one first, that it has ended."""
        with ExitStack() as stack:
            for one in self._callbacks:
                one.begin(experiment, folder)
                stack.callback(lambda one=one: one.end(self.result))  # type: ignore[misc]
            yield


def row_notifier(ledger: Ledger, watch: Watch | None, device: torch.device) -> Callable[..., bool]:
    """A function that calls `watch` with new rows: after every round, on a GPU with all since the last reading.

    It says whether `watch` asked to stop. Without a new round it shows the last one anew, if it is told so.
    """
    waiting, last = 0, time_slot(SHOWN_EVERY)

    def show(ended: bool, new: bool = True) -> bool:
        nonlocal waiting, last
        waiting += new
        if watch is None or not (ended or device.type == "cpu" or time_slot(SHOWN_EVERY) != last):
            return False
        answers = [watch(row) for row in ledger.newest(waiting)] if waiting else []
        waiting, last = 0, time_slot(SHOWN_EVERY)
        return STOP in answers

    return show
