"""Full disks, folders that cannot be written, files that grow too large: a clear end, and the last checkpoint stays."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedloom.cli.main import main
from fedloom.runs.checkpoint import store
from fedloom.runs.experiment import Experiment
from fedloom.runs.play import run

WORDS = ("--clients", "4", "--set", "per_round=2", "--set", "epochs=1", "--set", "batch=64", "--checkpoint-every", "1")
WORDS += ("--set", "model.widths=[64]", "--device", "cpu", "--json")
ROOM = 2**20  # bytes

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def fedloom(monkeypatch, capsys) -> Command:
    """The command, in this process: exit code and what it said."""

    def call(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["fedloom", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), " ".join(capsys.readouterr().err.split())

    return call


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A disk of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(place)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs needs rights that this user does not have")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(disk: Path, leave: int) -> Path:
    """A file that leaves so many bytes."""
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    (disk / "ballast").write_bytes(bytes(free - leave))
    return disk / "ballast"


def good(folder: Path) -> list[int]:
    """The rounds of all checkpoints, each of which is whole."""
    return [store.read(path).facts["round"] for path in store.list_all(folder / "checkpoint")]


@pytest.mark.parametrize("leave", [0, 20_000, 100_000])
def test_a_full_disk(leave, disk, fedloom, tmp_path):
    words = ("run", "scaffold", *WORDS, "--out", str(disk / "run"), "--resume")
    assert fedloom(*words, "--rounds", "2")[0] == 0
    assert fedloom("run", "scaffold", *WORDS, "--rounds", "6", "--out", str(tmp_path / "straight"))[0] == 0
    ballast = fill(disk, leave)
    code, said = fedloom(*words, "--rounds", "6")
    assert code == 3, said
    assert f"No space left on device; free some room on the disk of '{disk / 'run'}'" in said
    assert f"fedloom run --resume {disk / 'run'}" in said
    assert "Traceback" not in said
    assert "Logging error" not in said
    assert good(disk / "run")[0] >= 2
    ballast.unlink()
    assert fedloom(*words, "--rounds", "6")[0] == 0
    ours, theirs = (folder / "model.safetensors" for folder in (disk / "run", tmp_path / "straight"))
    assert ours.read_bytes() == theirs.read_bytes()


def test_a_read_only_disk(disk, fedloom):
    assert fedloom("run", "scaffold", *WORDS, "--rounds", "2", "--out", str(disk / "run"))[0] == 0
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    code, said = fedloom("run", "--resume", str(disk / "run"), "--rounds", "6")
    assert (code, good(disk / "run")[0]) == (3, 2), said
    assert "Read-only file system; make the folder writable" in said
    code, said = fedloom("run", "fedavg", *WORDS, "--out", str(disk / "new"))
    assert code == 3, said
    assert "cannot write" in said


def test_files_that_may_not_grow(fedloom, tmp_path):
    words = ("run", "scaffold", *WORDS, "--out", str(tmp_path / "run"), "--resume")
    assert fedloom(*words, "--rounds", "2")[0] == 0
    before, limit = resource.getrlimit(resource.RLIMIT_FSIZE), 30_000  # bytes a file
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        code, said = fedloom(*words, "--rounds", "6")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert code == 3, said
    assert "File too large" in said
    assert good(tmp_path / "run")[0] == 2
    assert fedloom(*words, "--rounds", "6")[0] == 0


def test_nothing_unfinished_is_left(tmp_path):
    experiment = Experiment(model="linear", clients=3, rounds=5)
    run(experiment, out=tmp_path / "run")
    inside = sorted(path.name for path in (tmp_path / "run" / "checkpoint").iterdir())
    assert inside[0] == "lock"
    assert len(inside) == 2
    assert inside[1].startswith("round-5-")
