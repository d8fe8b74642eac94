"""The logs of a run folder: `log.txt` for people, and `log.jsonl` with a JSON object a line for programs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

log = logging.getLogger("fedloom")

TEXT, JSON = "log.txt", "log.jsonl"

HERE: ContextVar[Path | None] = ContextVar("the run folder that this thread writes", default=None)
EARLY: ContextVar[list[logging.LogRecord] | None] = ContextVar("warnings before a folder is open", default=None)
OPEN: list[int] = []  # for each run whose files are open: the level that the log had before the first of them


def facts(event: str, **values: Any) -> dict[str, dict[str, Any]]:
    """What a program wants to know of a message, for `extra` of a logging call."""
    return {"facts": {"event": event, **values}}


class Lines(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Time in UTC, level, message, module, and the record's facts."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": when, "level": record.levelname, "message": record.getMessage(), "module": record.module}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps({**line, **vars(record).get("facts", {})}, default=str)


class _File(logging.FileHandler):
    """A log file that is silent on a full disk, which the run itself reports, and on what other runs' threads say."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Leave out records of threads that write another run's folder."""
        here = HERE.get()
        return (here is None or here == Path(self.baseFilename).parent) and bool(super().filter(record))

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the line."""

    def close(self) -> None:
        """Close; lines that cannot be written are dropped."""
        with suppress(OSError):
            super().close()


def _handlers(folder: Path) -> list[_File]:
    """Handlers that write into a run folder's logs."""
    handlers = [_File(folder / TEXT), _File(folder / JSON)]
    handlers[0].setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    handlers[1].setFormatter(Lines())
    return handlers


class _Kept(logging.Handler):
    """Keeps warnings for the run folder that is opened next in this thread."""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record."""
        if (kept := EARLY.get()) is not None:
            kept.append(record)


@contextmanager
def early_warnings() -> Iterator[None]:
    """Keep warnings of what comes before a run folder is opened, for its log."""
    handler, before = _Kept(logging.WARNING), EARLY.set([])
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        EARLY.reset(before)


def add_to_log(folder: Path, text: str) -> None:
    """Write a line into the logs of a run that is not going on."""
    record = logging.makeLogRecord({"levelname": "INFO", "levelno": logging.INFO, "msg": text, "module": "log"})
    for handler in _handlers(folder):
        handler.handle(record)
        handler.close()


@contextmanager
def logged(folder: Path) -> Iterator[None]:
    """Write fedloom's log records into both files, and at last how the run ended."""
    handlers, mine = _handlers(folder), HERE.set(folder.absolute())
    for handler in handlers:
        log.addHandler(handler)
    level = OPEN[0] if OPEN else log.level
    OPEN.append(level)
    log.setLevel(logging.INFO)
    for record in EARLY.get() or ():
        for handler in handlers:
            handler.handle(record)
    EARLY.set(None)
    try:
        yield
        log.info("finished", extra=facts("finished"))
    except BaseException as problem:
        why = str(problem) or type(problem).__name__
        log.info("stopped: %s", why, extra=facts("stopped", why=why, error=type(problem).__name__))
        raise
    finally:
        OPEN.pop()
        if not OPEN:  # runs that are trained together end in any order
            log.setLevel(level)
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()
        HERE.reset(mine)
