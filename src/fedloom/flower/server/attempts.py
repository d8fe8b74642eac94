"""A run's name and its starts, kept in `checkpoint/network.json`: under the name nodes save states."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from fedloom.errors import BadData
from fedloom.files import replace_file, writing
from fedloom.flower.protocol.history import History
from fedloom.flower.protocol.round_id import RoundId
from fedloom.flower.protocol.run_file import RUN_FILE
from fedloom.reading.texts import read_json
from fedloom.runs.checkpoint.store import rounds


class Attempts:
    """How often a run was started, and from which round each start went on."""

    def __init__(self, out: Path | None, resume: bool) -> None:
        """`resume`: it goes on, if there is something to go on with."""
        self._out, self.run, self.attempt, self._starts = out, uuid.uuid4().hex, 1, list[tuple[int, int]]()
        self._begun = False
        if out is not None:
            if resume and (out / "checkpoint" / RUN_FILE).exists():
                self._recall(out / "checkpoint" / RUN_FILE)
            self._write(out)

    def begin(self, number: int) -> None:
        """The first round of this start is about to be played: what later rounds left with nodes is void."""
        if self._begun:
            return
        self._begun = True
        self._starts.append((self.attempt, number - 1))
        if self._out is not None:
            self._write(self._out)

    def round_id(self, number: int, base: str) -> RoundId:
        """The facts of messages in round `number` about the model with the hash `base`."""
        return RoundId(self.run, number, self.attempt, base)

    def history(self) -> dict[str, Any]:
        """The run's history as facts of a message, as it is now."""
        kept = () if self._out is None else rounds(self._out / "checkpoint")
        return History(tuple(self._starts), tuple(kept))._asdict()

    def _recall(self, file: Path) -> None:
        """Read what earlier starts have written."""
        try:
            read = read_json(file)
            self.run, self.attempt = str(read["run"]), int(read["attempt"]) + 1
            self._starts = [(int(attempt), int(start)) for attempt, start in read["starts"]]
        except (ValueError, KeyError, TypeError) as problem:
            raise BadData(f"'{file}' cannot be read ({problem}); it was written when the run began.") from problem

    def _write(self, out: Path) -> None:
        """Write the file, which the next start reads."""
        file, about = out / "checkpoint" / RUN_FILE, {"run": self.run, "attempt": self.attempt, "starts": self._starts}
        with writing(out):
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(file, [json.dumps(about).encode()])
