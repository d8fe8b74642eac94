"""Who hosts whom, where a deployment is changed while its run goes on."""

from __future__ import annotations

import logging
from pathlib import Path

from fedloom.errors import BadExperiment
from fedloom.flower.protocol.owners import Owner, read_owners
from fedloom.flower.protocol.run_file import NODES_FILE
from fedloom.flower.protocol.said import said

log = logging.getLogger("fedloom")


class ChangedOwners:
    """A file in the run folder; what was there before the run was started is out of date."""

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / "checkpoint" / NODES_FILE
        self._seen = self._written()

    def read(self) -> tuple[Owner, ...]:
        """The nodes, if they have changed since the last look; else none."""
        if self._file is None or (written := self._written()) == self._seen:
            return ()
        self._seen = written
        try:
            found = read_owners(self._file.read_text())
        except (OSError, BadExperiment) as problem:
            log.warning("'%s' changes nothing: %s", self._file, said(problem, 500))
            return ()
        if found:
            log.info("who hosts whom has changed: %d nodes, as '%s' says", len(found), self._file)
        return found

    def _written(self) -> int:
        """When the file was written; 0 if there is none."""
        try:
            return 0 if self._file is None else self._file.stat().st_mtime_ns
        except OSError:
            return 0
