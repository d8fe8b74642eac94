"""`fedloom states`: what a node keeps, and what is removed."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fedloom.cli.main import main
from fedloom.flower.node.old_states import DAY
from fedloom.flower.node.state_store import NOTHING, Start, StateStore
from fedloom.flower.protocol.history import History

FIRST = "start-0123abcd.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two runs of two clients each, one of them 100 days old, and weights that a run began with."""
    for run in ("old", "new"):
        store = StateStore({}, str(tmp_path / "node"), run, History((), (0,)))
        for client in (3, 5):
            store.put(client, 1, 1, Start(NOTHING, None), {"a": torch.ones(7)})
        if run == "old":
            (old,) = (tmp_path / "node").iterdir()
            for file in old.rglob("*.safetensors"):
                os.utime(file, (time.time() - 100 * DAY,) * 2)
    (tmp_path / "node" / FIRST).write_bytes(b"1234")
    return tmp_path / "node"


def states(monkeypatch: Any, capsys: Any, *words: str) -> dict[str, Any]:
    """What the command says."""
    monkeypatch.setattr(sys, "argv", ["fedloom", "states", *words, "--json"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code, capsys.readouterr().err
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def test_a_row_for_each_run(folder: Path, monkeypatch: Any, capsys: Any) -> None:
    rows = states(monkeypatch, capsys, str(folder))["states"]
    assert [(row["clients"], row["files"]) for row in rows] == [(2, 2), (2, 2), (0, 1)]
    assert rows[2]["size"] == 4


def test_old_ones_are_removed_and_new_ones_stay(folder: Path, monkeypatch: Any, capsys: Any) -> None:
    (old,) = states(monkeypatch, capsys, str(folder), "--older", "90")["states"]
    assert Path(old["path"]).is_dir()
    assert states(monkeypatch, capsys, str(folder), "--older", "90", "--remove")["states"] == [old]
    assert not Path(old["path"]).exists()
    assert len(list(folder.rglob("*.safetensors"))) == 3
    assert states(monkeypatch, capsys, str(folder), "--older", "90")["states"] == []


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--remove"], "--remove needs --older DAYS"),
        (["--older", "0", "--remove"], "has 'mine/photo.jpg', which is no client's state"),
    ],
)
def test_nothing_else_is_removed(folder: Path, words: list[str], complaint: str, monkeypatch: Any, capsys: Any) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "photo.jpg").write_bytes(b"")
    monkeypatch.setattr(sys, "argv", ["fedloom", "states", str(folder), *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert complaint in " ".join(capsys.readouterr().err.split())
    assert len(list(folder.rglob("*.*"))) == 6
