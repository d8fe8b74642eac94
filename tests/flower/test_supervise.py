"""A run that is started again until it is finished, refused or stopped by its operator."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr")

from fedloom.errors import BadExperiment, RunStopped
from fedloom.flower.deploy import supervise
from fedloom.flower.deploy.commands import deploy
from fedloom.flower.deploy.control import UNKNOWN, RunStatus
from fedloom.flower.deploy.folder import write_app, write_home, write_nodes
from fedloom.flower.deploy.processes import marked_processes
from fedloom.flower.deploy.supervise import Deployed, End, Supervisor, read_deployment
from fedloom.flower.deploy.trial import CONFIG, Trial, started
from fedloom.flower.protocol.run_file import NODES_FILE
from fedloom.flower.server.run_state import read_state, stated
from fedloom.runs.checkpoint.store import list_all
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import LOCK
from fedloom.runs.lock import in_use, locked

LONG = 200.0  # seconds; on a busy machine
EXPERIMENT = Experiment(method="fedspu", clients=2, rounds=5, device="cpu", training={"epochs": 1})
DONE, FAILED, STOPPED = (RunStatus("finished", how, "it") for how in ("completed", "failed", "stopped"))
RUNNING, PENDING = RunStatus("running", "", ""), RunStatus("pending", "", "")


class Link:
    """A link whose runs do what a test says: each is a list of states, or of functions that give or raise them."""

    def __init__(self, *runs: list[Any], going_on: int | None = None) -> None:
        self.runs, self.number, self.begun, self.stopped = [list(run) for run in runs], going_on, 0, list[int]()

    def going_on(self, name: str, value: str) -> int | None:
        return self.number

    def start(self, app: Path, terms: dict[str, Any]) -> int:
        assert terms["resume"] is True
        self.begun += 1
        return self.begun

    def status(self, run: int) -> RunStatus:
        steps = self.runs[0]
        step = steps.pop(0) if len(steps) > 1 else steps[0]
        found: RunStatus = step() if callable(step) else step
        if found.status == "finished":
            self.runs.pop(0)
        return found

    def stop(self, run: int) -> None:
        self.stopped.append(run)
        self.runs.pop(0)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that would be made; looks take no time."""
    found: list[float] = []
    monkeypatch.setattr(supervise, "LOOK", 0.0)
    monkeypatch.setattr(supervise.time, "sleep", lambda seconds: found.append(seconds) if seconds else None)
    return found


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "run"


def supervised_by(link: Link, out: Path, **more: Any) -> tuple[End, list[str]]:
    """How a supervised run ended, and what was told."""
    notes: list[str] = []
    deployed = Deployed(out, EXPERIMENT, out, "", out)
    return Supervisor(deployed, link, notes.append, **more).run(), notes  # type: ignore[arg-type]


def ends(out: Path, problem: Exception | None = None) -> Callable[[], RunStatus]:
    """A run that writes its state and ends."""

    def end() -> RunStatus:
        try:
            with stated(out):
                if problem is not None:
                    raise problem
        except type(problem or BadExperiment()):
            return FAILED
        return DONE

    return end


def test_a_change_of_the_deployment_reaches_the_run(out: Path, pauses: list[float]) -> None:
    """What it was started with is not said again; a folder that is being copied is waited for."""
    file = out / "checkpoint" / NODES_FILE
    file.parent.mkdir(parents=True)
    write_app(out / "app", EXPERIMENT, {**CONFIG, "nodes": "before"})
    app, said = out / "app" / "pyproject.toml", list[str | None]()

    def then(change: Callable[[], object]) -> Callable[[], RunStatus]:
        def step() -> RunStatus:
            said.append(file.read_text() if file.exists() else None)
            change()
            return RUNNING

        return step

    whole = app.read_text()
    steps = [
        then(lambda: write_nodes(out / "app", "after")), then(lambda: app.write_text("half [")), then(file.unlink),
        then(lambda: app.write_text(whole)), then(lambda: None), ends(out),
    ]  # fmt: skip
    deployed = Deployed(out / "app", EXPERIMENT, out, "", out)
    assert Supervisor(deployed, Link(steps), print).run().state == "finished"  # type: ignore[arg-type]
    assert said == [None, "after", "after", None, "before"]


def test_it_is_started_again_until_it_is_finished(out: Path, pauses: list[float]) -> None:
    """Pauses double while nothing is gained, up to five minutes."""
    crashes = [[RUNNING, FAILED]] * 8
    link = Link(*crashes, [ends(out, RunStopped("nobody is there"))], [RUNNING, ends(out)])
    end, notes = supervised_by(link, out)
    assert end == End("finished", "")
    assert link.begun == 10
    assert pauses == [10, 20, 40, 80, 160, 300, 300, 300, 300]
    assert "the run stopped (nobody is there); it is started again in 300 s" in notes


def test_progress_makes_pauses_short_again(out: Path, pauses: list[float]) -> None:
    def saves() -> RunStatus:
        (out / "checkpoint" / f"round-1-{'0' * 32}").mkdir(parents=True)
        return FAILED

    end, _ = supervised_by(Link([FAILED], [FAILED], [saves], [FAILED], [ends(out)]), out)
    assert end.state == "finished"
    assert pauses == [10, 20, 5, 10]


def test_what_a_person_must_mend_is_not_tried_again(out: Path, pauses: list[float]) -> None:
    end, _ = supervised_by(Link([ends(out, BadExperiment("no such data"))]), out)
    assert end == End("refused", "no such data")
    assert pauses == []


def test_an_app_that_cannot_be_loaded_is_not_tried_again(out: Path, pauses: list[float]) -> None:
    """It ended by an error before it could write anything."""
    why = "ServerApp failed with exception: No module named 'mine'"
    end, _ = supervised_by(Link([RunStatus("finished", "failed", why)]), out)
    assert end == End("refused", why)


def test_an_operator_may_stop_it(out: Path, pauses: list[float]) -> None:
    assert supervised_by(Link([RUNNING, STOPPED]), out)[0].state == "asked"


def test_a_link_that_is_away_is_waited_for(out: Path, pauses: list[float]) -> None:
    def away() -> RunStatus:
        raise httpx.ConnectError("refused")

    link = Link([away, away, RUNNING, away, lambda: UNKNOWN], [ends(out)])
    end, notes = supervised_by(link, out)
    assert end.state == "finished"
    assert len([note for note in notes if "the link does not answer (ConnectError: refused)" in note]) == 1
    assert any("does not know the run any more" in note for note in notes)


def test_a_run_that_goes_on_is_not_started_twice(out: Path, pauses: list[float]) -> None:
    link = Link([RUNNING, ends(out)], going_on=7)
    assert supervised_by(link, out)[0].state == "finished"
    assert link.begun == 0


def test_a_server_app_that_dies_is_noticed_by_its_lock(
    out: Path, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower says for a minute that it runs."""
    monkeypatch.setattr(supervise, "DIED", 0.05)
    looks = [0]

    def runs() -> RunStatus:
        looks[0] += 1
        return RUNNING

    def holds() -> RunStatus:
        (out / LOCK).parent.mkdir(parents=True, exist_ok=True)
        lock.append(locked(out / LOCK, "it"))
        lock[-1].__enter__()
        return RUNNING

    def dies() -> RunStatus:
        lock.pop().__exit__(None, None, None)
        return RUNNING

    lock: list[Any] = []
    link = Link([holds, RUNNING, dies, runs], [ends(out)])
    end, notes = supervised_by(link, out)
    assert end.state == "finished"
    assert link.stopped == [1]
    assert looks[0] > 1
    assert "the run stopped (its process died); it is started again in 10 s" in notes


def test_a_link_that_begins_nothing_is_said(out: Path, pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "UNBEGUN", -1.0)
    _, notes = supervised_by(Link([PENDING, PENDING, ends(out)]), out)
    assert len([note for note in notes if "flwr-serverapp is not on its PATH" in note]) == 1


def test_states(out: Path) -> None:
    """A state is not written over another run's, nor into a folder of somebody else."""
    assert read_state(out) is None
    with stated(out):
        found = read_state(out)
        assert found is not None
        assert found.state == "running"
    with locked(out / LOCK, "it"):
        assert in_use(out / LOCK)
        assert ends(out, BadExperiment("in use"))() == FAILED
    assert not in_use(out / LOCK)
    found = read_state(out)
    assert found is not None
    assert found.state == "finished"
    other = out.with_name("letters")
    other.mkdir()
    (other / "letter").write_text("dear")
    with stated(other):
        pass
    assert [file.name for file in other.iterdir()] == ["letter"]


def test_a_deployments_folder(tmp_path: Path) -> None:
    made, _ = deploy(tmp_path / "made", EXPERIMENT, 2, {**CONFIG, "out": "/srv/run"})
    found = read_deployment(tmp_path / "made")
    assert (found.app, found.out, found.authority) == (made.app, Path("/srv/run"), made.certificates.authority)
    assert found.experiment == EXPERIMENT
    with pytest.raises(BadExperiment, match="is not the folder of a deployment"):
        read_deployment(tmp_path)


def until(what: Callable[[], object]) -> None:
    ends = time.monotonic() + LONG
    while not what():
        assert time.monotonic() < ends
        time.sleep(0.05)


def server_apps(trial: Trial) -> list[int]:
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in marked_processes(trial.processes.mark)}
    return [pid for pid, command in commands.items() if b"flwr-serverapp" in command]


@contextmanager
def supervised(trial: Trial, name: str) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """`fedloom supervise` of a run of its own; the run folder and the command."""
    folder, out = trial.deployment.root.parent / name, trial.deployment.root.parent / f"{name}-run"
    write_home(folder / "home", str(trial.address), trial.deployment.certificates.authority)
    write_app(folder / "app", EXPERIMENT, {**CONFIG, "out": str(out)})
    words = [sys.executable, "-m", "fedloom", "supervise", str(folder), "--pause", "0.5"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as command:
        try:
            yield out, command
        finally:
            if command.poll() is None:
                command.kill()


def model_after(out: Path, command: subprocess.Popen[str]) -> tuple[str, str]:
    """The hash of the finished run's model, and what the command said."""
    said, _ = command.communicate(timeout=LONG)
    assert command.returncode == 0, said
    return hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest(), said


@pytest.mark.slow
def test_a_real_run_goes_on_by_itself(tmp_path: Path) -> None:
    """Its server app is killed; then the link, with all that it started, which is started again."""
    with started(EXPERIMENT, 2, tmp_path / "work", tmp_path / "states", lasting=True) as trial:
        with supervised(trial, "undisturbed") as (out, command):
            wanted, _ = model_after(out, command)
        with supervised(trial, "disturbed") as (out, command):
            until(lambda: list_all(out / "checkpoint"))
            [app] = server_apps(trial)
            os.kill(app, signal.SIGKILL)
            until(lambda: f"{out / 'checkpoint'}/round-3" in str(list_all(out / "checkpoint")[0]))
            trial.processes.kill("link")
            until(lambda: not server_apps(trial))
            trial.start_link()
            found, said = model_after(out, command)
    assert said.count("the run stopped (its process died); it is started again") == 2
    assert "the link does not answer" in said
    assert found == wanted
    assert len(json.loads((out / "experiment.json").read_text())["resumed"]) == 2
