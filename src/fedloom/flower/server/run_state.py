"""The state of a run in its folder, `checkpoint/state.json`: for whoever starts it again, and for the operator."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple

from fedloom.errors import FedloomError, RunStopped
from fedloom.files import replace_file
from fedloom.flower.protocol.run_file import STATE_FILE
from fedloom.runs.folder import LOCK
from fedloom.runs.lock import in_use

RunState = Literal["running", "finished", "stopped", "refused"]


class Stated(NamedTuple):
    """What a run's folder says."""

    state: RunState
    why: str
    time: float  # when it was written, by `time.time`


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


def read_state(folder: Path) -> Stated | None:
    """The state in a run folder; None if it says none."""
    try:
        read = json.loads((folder / "checkpoint" / STATE_FILE).read_text())
        return Stated(read["state"], str(read["why"]), float(read["time"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(folder: Path | None, state: RunState, why: str) -> None:
    """Write the state, but not into the folder of another run or of somebody else.

    A disk that is full is reported by the run itself.
    """
    if folder is None:
        return
    inside = folder / "checkpoint"
    with suppress(OSError):
        ours = inside.is_dir() or not folder.exists() or not any(folder.iterdir())
        if ours and not in_use(folder / LOCK):
            inside.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"state": state, "why": why, "time": time.time()})
            replace_file(inside / STATE_FILE, [text.encode()])
