"""A Flower quickstart becomes FedDD by a few lines, sends less, and learns as well."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from flower_own import OneProcess
from flower_processes import Trial

ROOT = Path(__file__).parent.parent.parent / "examples" / "flower_quickstart"
MODEL = 4 * (16 * 9 + 16 + 32 * 16 * 9 + 32 + 64 * 128 + 64 + 10 * 64 + 10)  # bytes


def files(folder: str) -> dict[str, str]:
    """Relative path -> text."""
    found = (ROOT / folder).rglob("*")
    return {
        str(path.relative_to(ROOT / folder)): path.read_text()
        for path in found
        if path.is_file() and "__pycache__" not in path.parts
    }


@contextmanager
def imported(folder: str) -> Iterator[tuple[Any, Any]]:
    """The server's and the client's module of one of the two apps."""
    names = [name for name in sys.modules if name.partition(".")[0] == "quickstart"]
    for name in names:
        del sys.modules[name]
    sys.path.insert(0, str(ROOT / folder))
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        importlib.invalidate_caches()
        yield importlib.import_module("quickstart.server_app"), importlib.import_module("quickstart.client_app")
    finally:
        sys.path.remove(str(ROOT / folder))
        sys.dont_write_bytecode = before


def settings(results: Path, rounds: int, nodes: int) -> dict[str, Any]:
    """The run config of both apps."""
    return {"nodes": nodes, "num-server-rounds": rounds, "local-epochs": 2, "lr": 0.03, "batch-size": 16,
            "results": str(results)}  # fmt: skip


def in_process(folder: str, results: Path, rounds: int, nodes: int = 4) -> tuple[dict[str, Any], int]:
    """Run an app; its report, and the bytes of its nodes' replies."""
    config = settings(results, rounds, nodes)
    with imported(folder) as (server, client):
        grid = OneProcess(lambda: client.app, nodes)
        for context in grid.contexts.values():
            context.run_config.update(config)
        server.app(grid, Context(1, 1, {}, RecordDict(), config))
    assert not grid.errors
    return json.loads(results.read_text()), grid.received


def test_fewer_than_ten_lines_change() -> None:
    before, after = files("before"), files("after")
    assert before.keys() == after.keys()
    changed = 0
    for name in before:
        lines = unified_diff(before[name].splitlines(), after[name].splitlines(), n=0, lineterm="")
        changed += sum(line[0] in "+-" and not line.startswith(("+++", "---")) for line in lines)
    assert 0 < changed < 10  # lines taken out and lines put in


def test_both_run_and_feddd_sends_less(tmp_path: Path) -> None:
    whole, whole_bytes = in_process("before", tmp_path / "before.json", 5)
    less, less_bytes = in_process("after", tmp_path / "after.json", 5)
    assert less["test"][0] == whole["test"][0]  # the same network at first
    up = [row["upload-bytes"] for row in less["train"]]
    assert max(up[1:]) < 0.45 * 4 * MODEL < up[0]  # the first round is whole
    assert less_bytes < 0.6 * whole_bytes
    assert whole["test"][-1]["accuracy"] > 0.85
    assert less["test"][-1]["accuracy"] > whole["test"][-1]["accuracy"] - 0.05


class Quickstart(Trial):
    """Real processes around one of the two apps."""

    def start_node(self, number: int, clients: str) -> None:
        self._start_node(number, f"partition-id={clients}")

    def report(self, folder: str, rounds: int, nodes: int, seconds: float = 600.0) -> dict[str, Any]:
        """Run an app; its report."""
        results = self.folder / f"{folder}.json"
        self.begin_app(ROOT / folder, settings(results, rounds, nodes)).wait(seconds)
        assert results.exists(), self.log("run")
        found: dict[str, Any] = json.loads(results.read_text())
        return found


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["before", "after"])
def test_real_processes_end_where_one_process_does(folder: str, tmp_path: Path) -> None:
    here, _ = in_process(folder, tmp_path / "here.json", 2, nodes=2)
    trial = Quickstart(tmp_path, ["0", "1"])
    try:
        there = trial.report(folder, 2, nodes=2)
    finally:
        trial.stop()
    for ours, theirs in zip(here["test"], there["test"], strict=True):
        assert theirs["accuracy"] == pytest.approx(ours["accuracy"], abs=0.01)
        assert theirs["loss"] == pytest.approx(ours["loss"], abs=1e-3)
    if folder == "after":
        assert [row["upload-bytes"] for row in there["train"]] == [row["upload-bytes"] for row in here["train"]]
