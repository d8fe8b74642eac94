"""Several processes play what one would: the same files, whatever becomes of a process on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedloom.accel.machine import COMPANY, cores
from fedloom.runs.experiment import Experiment
from fedloom.runs.parquet import table_rows
from fedloom.studies.recipes import beside as others, groups as grouping, runner as playing
from fedloom.studies.recipes.beside import Beside, Helper
from fedloom.studies.recipes.groups import Group, fitting, groups_of, worth
from fedloom.studies.recipes.recipe import Claim, Recipe, Tuning, only
from fedloom.studies.recipes.runner import Played, Stage, play
from fedloom.studies.recipes.table import RECIPES
from studies.recipes.long_command import endless

COMMON: dict[str, Any] = {"clients": 6, "per_round": 3, "rounds": 3, "training": {"epochs": 1}}
CLOCKS = ("wall_seconds", "evaluation_seconds")
WAIT = 120.0  # seconds that a process may take on a machine with other work


def tiny() -> Recipe:
    """Two groups that choose a rate, and two that use it."""
    plain = Experiment(**COMMON)
    experiments = {"d/FedAvg": plain, "d/FedProx": Experiment(**COMMON, method="fedprox")}
    return Recipe("tiny", "digits", experiments, (Claim("v", ("d/FedAvg",)),), (), (Tuning("d/", plain, (0.01, 0.2)),))


def played(out: Path, processes: int | None = 1, **more: Any) -> Played:
    more = {"watch": lambda name, seed, row: None, "tell": lambda note: None, **more}
    return play([tiny()], (0, 1), out, "cpu", None, processes=processes, **more)


def kept(out: Path) -> dict[str, Any]:
    """All that the store has, but for seconds, and the threads that processes on one CPU share."""
    found: dict[str, Any] = {}
    for file in (out / "runs").iterdir():
        if file.suffix == ".json":
            found[file.name] = {k: v for k, v in json.loads(file.read_text()).items() if k != "seconds"}
            del found[file.name]["machine"]["threads"]
        else:
            found[file.name] = [{k: v for k, v in row.items() if k not in CLOCKS} for row in table_rows(file)]
    return found


def until(true: Callable[[], Any]) -> None:
    ends = time.monotonic() + WAIT
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.02)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Helper]:
    """The helpers that were given a group, in that order; this process begins none before the first was."""
    found: list[Helper] = []
    give, attempt = Beside._give, Stage.attempt

    def giving(self: Beside, helper: Helper) -> None:
        before = helper.group
        give(self, helper)
        if helper.group is not before:
            found.append(helper)

    def waiting(self: Stage, group: Group, alone: bool) -> str | None:
        until(lambda: found or alone)
        return attempt(self, group, alone)

    monkeypatch.setattr(Beside, "_give", giving)
    monkeypatch.setattr(Stage, "attempt", waiting)
    return found


def test_two_processes_write_what_one_does(tmp_path: Path, given: list[Helper]) -> None:
    seen: list[tuple[str, int, int]] = []
    notes: list[str] = []
    one = played(tmp_path / "one")
    assert not given
    two = played(tmp_path / "two", 2, watch=lambda n, s, row: seen.append((n, s, row["round"])), tell=notes.append)
    assert given
    assert two == one
    assert two.ran == 2 + 4
    assert kept(tmp_path / "two") == kept(tmp_path / "one")
    assert len(seen) == 3 * two.ran  # every round of every run is shown, whoever played it
    assert "2 groups of runs are played in 2 processes" in notes
    assert sum(": " in note for note in notes) == 4  # a line for each group
    assert given[0].process.poll() is not None
    assert COMPANY not in os.environ
    assert played(tmp_path / "two", 2)._replace(kept=0) == one._replace(ran=0, kept=0)  # nothing is run again


def test_one_that_is_killed(tmp_path: Path, given: list[Helper], caplog: pytest.LogCaptureFixture) -> None:
    def ending(name: str, seed: int, row: dict[str, Any]) -> None:
        if given[0].process.poll() is None:
            given[0].process.kill()
            given[0].process.wait()

    found = played(tmp_path / "two", 2, watch=ending)
    assert (found.ran, found.failed, found.left) == (6, {}, 0)
    assert "SIGKILL" in caplog.text
    assert "--processes 1" in caplog.text
    played(tmp_path / "one")
    assert kept(tmp_path / "two") == kept(tmp_path / "one")


def test_one_that_cannot_start(tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Stage.attempt

    def late(self: Stage, group: Group, alone: bool) -> str | None:
        until(lambda: caplog.text)
        return real(self, group, alone)

    monkeypatch.setattr(Stage, "attempt", late)
    monkeypatch.setattr(others.sys, "executable", "/bin/false")
    found = played(tmp_path, 2)
    assert (found.ran, found.failed) == (6, {})
    assert "ended with code 1; it had nothing to play" in caplog.text


def test_trouble_beside_others_is_tried_again_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, notes, calls = playing.run_all, list[str](), 0

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("out of memory")
        return real(*args, **kwargs)

    monkeypatch.setattr(playing, "run_all", failing)
    found = played(tmp_path, 2, tell=notes.append)
    assert (found.ran, found.failed) == (6, {})
    assert [note for note in notes if "played alone" in note and "RuntimeError: out of memory" in note]


def test_no_time_left(tmp_path: Path) -> None:
    found = played(tmp_path, 2, minutes=0)
    assert (found.ran, found.left) == (0, 2)


def helpers_of(parent: int) -> list[int]:
    """The processes that it started."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, owner = file.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(owner) == parent and state != "Z":
            found.append(int(file.parent.name))
    return found


def there(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_behind(tmp_path: Path, number: signal.Signals) -> None:
    words = ["reproduce", "endless", "--seeds", "1", "--processes", "3", "--device", "cpu", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    script = Path(__file__).with_name("long_command.py")
    command = subprocess.Popen([sys.executable, script, *words], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: len(list((tmp_path / "runs").glob("*.json"))) == 2 and len(helpers_of(command.pid)) == 2)
        helpers = helpers_of(command.pid)
        command.send_signal(number)
        _, errors = command.communicate(timeout=WAIT)
    finally:
        command.kill()
    assert command.returncode == (130 if number == signal.SIGINT else -number)
    assert ("interrupted" in errors) == (number == signal.SIGINT)
    until(lambda: not any(map(there, helpers)))
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "runs").iterdir()}
    again = play([only(endless(), ["short"])], (0,), tmp_path, "cpu", None, lambda *each: None, lambda note: None)
    assert (again.ran, again.kept) == (0, 2)
    assert {file: file.stat().st_mtime_ns for file in before} == before


def of(name: str) -> list[Group]:
    experiments = RECIPES[name](False).experiments.items()
    runs = [(label, playing.changed(one, seed=seed)) for label, one in experiments for seed in range(3)]
    return groups_of(runs, "cuda")


@pytest.mark.parametrize(
    ("name", "free", "count"),
    [
        ("fedumf-table1", 140, 4),  # four groups of about 10 GB
        ("fedumf-table1", 50, 2),
        ("fedumf-table1", 30, 1),
        ("fedumf-table3", 140, 1),  # CIFAR-10
        ("rafed-table3", 140, 1),  # texts: the size of the network is not known before they are read
    ],
)
def test_memory_decides(name: str, free: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free * 10**9, 141 * 10**9))
    monkeypatch.setattr(grouping, "free_memory", lambda: 100 * 10**9)
    assert fitting(of(name), 4, torch.device("cuda")) == count
    assert fitting(of(name), 4, torch.device("cpu")) == 4  # that is for whoever asks for four
    monkeypatch.setattr(grouping, "free_memory", lambda: 10**9)
    assert fitting(of(name), 4, torch.device("cuda")) == 1  # they hold the data on the host, too


def test_time_and_cores_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    table = of("fedumf-table1")
    assert [len(group.runs) for group in table] == [12, 6, 12, 6]
    assert [worth(table, most) for most in (1, 2, 4, 64)] == [1, 2, 4, 4]
    assert worth(of("fedumf-table3"), 4) == 1  # the device is busy all the time
    short = [group._replace(seconds=1.0, busy=0.1) for group in table]
    assert worth(short, 4) == 1  # over before another process has started
    assert worth([], 4) == 1
    monkeypatch.setattr(grouping, "cores", lambda: 16)
    assert (grouping.most("cuda"), grouping.most("cpu")) == (2, 1)
    monkeypatch.setattr(grouping, "cores", lambda: 2)
    assert grouping.most("cuda") == 1


def test_processes_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COMPANY, raising=False)
    alone = cores()
    monkeypatch.setenv(COMPANY, str(2 * alone))
    assert cores() == 1
