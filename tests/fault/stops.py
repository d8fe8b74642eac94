"""Stop a resumed run at every call to the system that saves it, one call after another, and resume it again.

`python tests/fault/stops.py MODE [STRIDE]` with MODE `kill` (the process is gone at once, before the call) or `full`
(the disk is full from the call on); a STRIDE of 4 tries every fourth call. MODE `first` kills a run at each of the
calls with which it begins. Prints one line; anything lost is an error.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forked import child, ended, result_of

from fedloom.data.dataset import Dataset
from fedloom.data.load import load as load_data
from fedloom.errors import RunStopped
from fedloom.runs.checkpoint import store
from fedloom.runs.checkpoint.saver import Checkpoints
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run

CALLS = ("open", "write", "fsync", "rename", "unlink", "mkdir", "rmdir", "close", "listdir", "ftruncate", "pwrite")
WRITES = ("open", "write", "fsync", "mkdir", "pwrite")  # what a full disk refuses
LONGEST = 500  # calls
FIRST = 25  # calls until a new run plays its first round
KILLED, FULL = 77, 3


def experiment(rounds: int) -> Experiment:
    """A method that remembers, on both sides."""
    return Experiment(
        method="scaffold", clients=4, per_round=2, rounds=rounds, model="linear", training={"steps": 1, "batch": 8}
    )


def few() -> Dataset:
    """Some of the digits."""
    data = load_data("digits")
    return data._replace(x_train=data.x_train[:200], y_train=data.y_train[:200], x_test=data.x_test[:50],
                         y_test=data.y_test[:50])  # fmt: skip


FEW = few()


def play(folder: Path, rounds: int) -> None:
    """Begin or go on, saved after every round."""
    run(experiment(rounds), data=FEW, out=folder, resume=True, checkpoints=Checkpoints(rounds=1))


def stopping(number: int, mode: str, work: Callable[[], None]) -> Callable[[], None]:
    """The same work, in which call `number` does not happen."""
    seen = 0

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*args: Any, **kwargs: Any) -> Any:
            nonlocal seen
            seen += 1
            if mode != "full" and seen == number:
                os._exit(KILLED)
            writes = name in WRITES and (name != "open" or bool(args[1] & os.O_CREAT))
            if mode == "full" and seen >= number and writes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(args[0]))
            return call(*args, **kwargs)

        return instead

    def stopped() -> None:
        for name in CALLS:
            setattr(os, name, counted(name, getattr(os, name)))
        try:
            work()
        except RunStopped as why:
            os._exit(FULL if "free some room" in str(why) and "fedloom run --resume" in str(why) else 98)

    return stopped


def main(mode: str, stride: int = 1) -> None:
    """All calls of one resumed round."""
    ends = FULL if mode == "full" else KILLED
    with tempfile.TemporaryDirectory() as place:
        base, straight, log = Path(place) / "base", Path(place) / "straight", Path(place) / "log"
        assert ended(child(lambda: play(straight, 3), log)) == 0, log.read_text()
        assert ended(child(lambda: play(base, 2), log)) == 0, log.read_text()
        wanted, later = result_of(straight), set()
        for number in range(1, FIRST if mode == "first" else LONGEST, stride):
            again = Path(place) / str(number)
            if mode != "first":
                shutil.copytree(base, again)
            code = ended(child(stopping(number, mode, lambda again=again: play(again, 3)), log))
            if code == 0:
                break  # the run was over before the call
            assert code == ends, f"call {number}: exit code {code}\n{log.read_text()}"
            good = [store.read(path).facts["round"] for path in store.list_all(again / "checkpoint")]
            later.add(max(good, default=0))
            assert mode == "first" or max(good, default=0) >= 2, f"call {number}: rounds {good} are left of 1 and 2"
            assert ended(child(lambda again=again: play(again, 3), log)) == 0, f"call {number}\n{log.read_text()}"
            assert result_of(again) == wanted, f"call {number}: another result"
            shutil.rmtree(again)
    print(f"{mode}: stopped at calls 1 to {number}; went on from rounds {sorted(later)} to the same result")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
