"""The state of a run in its folder, `checkpoint/state.json`: for whoever starts it again, and for the operator."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from fedloom.errors import FedloomError, RunStopped
from fedloom.files import replace_file
from fedloom.flower.protocol.run_file import STATE_FILE

State = Literal["running", "finished", "stopped", "refused"]


@contextmanager
def stated(folder: Path | None) -> Iterator[None]:
    """Keep the state of the run that goes on within.

    It ends as `finished`; as `stopped`, which may go better the next time; or as `refused`, which a person must mend.
    """
    try:
        _write(folder, "running", "")
        yield
    except BaseException as problem:
        mend = isinstance(problem, FedloomError) and not isinstance(problem, RunStopped)
        _write(folder, "refused" if mend else "stopped", str(problem) or type(problem).__name__)
        raise
    _write(folder, "finished", "")


def _write(folder: Path | None, state: State, why: str) -> None:
    """Write the state, if there is a run folder; a disk that is full is reported by the run itself."""
    file = None if folder is None else folder / "checkpoint" / STATE_FILE
    if file is None or not file.parent.is_dir():
        return
    with suppress(OSError):
        replace_file(file, [json.dumps({"state": state, "why": why, "time": time.time()}).encode()])
