"""The log of a run in its folder, `log.txt`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger("fedloom")


class _File(logging.FileHandler):
    """A log file that is silent on a full disk, which the run itself reports."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the line."""

    def close(self) -> None:
        """Close; lines that cannot be written are dropped."""
        with suppress(OSError):
            super().close()


def add_to_log(folder: Path, text: str) -> None:
    """Write a line into the log of a run that is not going on."""
    handler = _handler(folder)
    handler.handle(logging.makeLogRecord({"levelname": "INFO", "levelno": logging.INFO, "msg": text}))
    handler.close()


def _handler(folder: Path) -> _File:
    """A handler that writes into a run folder's log."""
    handler = _File(folder / "log.txt")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    return handler


@contextmanager
def log_file(folder: Path) -> Iterator[None]:
    """Write fedloom's log records into `log.txt`."""
    handler = _handler(folder)
    log.addHandler(handler)
    level = log.level
    log.setLevel(logging.INFO)
    try:
        yield
        log.info("finished")
    except BaseException as problem:
        log.info("stopped: %s", str(problem) or type(problem).__name__)
        raise
    finally:
        log.setLevel(level)
        log.removeHandler(handler)
        handler.close()
