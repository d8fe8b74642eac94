"""The logs of a run folder: the same events for people and for programs."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier, Event, Thread
from typing import Any

import pytest

from fedloom.runs.log_files import JSON, TEXT, early_warnings, facts, logged

log = logging.getLogger("fedloom")


def lines_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / JSON).read_text().splitlines()]


def test_every_message_is_in_both(tmp_path: Path) -> None:
    with logged(tmp_path):
        log.warning('node %d says "%s"\nand more', 3, "é\x1b", extra=facts("late", node=3, seconds=1.5))
        log.info("plain")
    lines = lines_in(tmp_path)
    assert [line["message"] for line in lines] == ['node 3 says "é\x1b"\nand more', "plain", "finished"]
    assert {name: lines[0][name] for name in ("level", "event", "node", "seconds", "module")} == {
        "level": "WARNING", "event": "late", "node": 3, "seconds": 1.5, "module": "test_log_files",
    }  # fmt: skip
    assert "event" not in lines[1]
    assert abs((datetime.now(UTC) - datetime.fromisoformat(lines[0]["time"])).total_seconds()) < 60
    text = (tmp_path / TEXT).read_text()
    assert all(str(line["message"]) in text for line in lines)


def test_how_it_ended(tmp_path: Path) -> None:
    """A run that goes on in the folder adds to both files."""
    with pytest.raises(ValueError, match="no luck"), logged(tmp_path):
        raise ValueError("no luck")
    with logged(tmp_path):
        pass
    ends = [(line["event"], line.get("why"), line.get("error")) for line in lines_in(tmp_path)]
    assert ends == [("stopped", "no luck", "ValueError"), ("finished", None, None)]


def test_errors_and_odd_values_are_written(tmp_path: Path) -> None:
    with logged(tmp_path):
        try:
            raise KeyError("it")
        except KeyError:
            log.exception("a failure", extra=facts("failure", where=tmp_path))
    found = lines_in(tmp_path)[0]
    assert "KeyError: 'it'" in found["error"]
    assert found["where"] == str(tmp_path)


def test_a_full_disk_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """The run itself says so when it saves."""

    def full(self: logging.StreamHandler, record: logging.LogRecord) -> None:
        self.handleError(record)

    monkeypatch.setattr(logging.FileHandler, "emit", full)
    with logged(tmp_path):
        log.info("lost")
    assert capsys.readouterr().err == ""


def test_warnings_before_the_folder_is_open_are_in_it(tmp_path: Path) -> None:
    with early_warnings():
        log.warning("layer 3 is kept whole")
        log.info("not that important")
        with logged(tmp_path):
            log.warning("later")
        log.warning("too late")
    assert [line["message"] for line in lines_in(tmp_path)] == ["layer 3 is kept whole", "later", "finished"]
    with logged(tmp_path / ".."):
        pass
    assert "kept whole" not in (tmp_path / ".." / TEXT).read_text()


def test_runs_at_once_have_logs_of_their_own(tmp_path: Path) -> None:
    """Each in its thread, and they end in any order; the level of the log is then what it was."""
    level, first_ended = log.level, Event()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    both = Barrier(2)

    def play(name: str) -> None:
        with logged(tmp_path / name):
            both.wait()
            log.info("%s here", name)
            both.wait()
            if name == "two":
                first_ended.wait(5)
                log.info("two goes on")
        first_ended.set()

    threads = [Thread(target=play, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [line["message"] for line in lines_in(tmp_path / "one")] == ["one here", "finished"]
    assert [line["message"] for line in lines_in(tmp_path / "two")] == ["two here", "two goes on", "finished"]
    assert log.level == level
