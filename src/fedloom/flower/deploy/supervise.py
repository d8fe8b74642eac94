"""A run that is started again until it is finished, whatever ends it: a crash, a link that restarts, absent nodes."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from fedloom.errors import BadExperiment, RunStopped
from fedloom.files import replace_file
from fedloom.flower.deploy.control import FINISHED, Control
from fedloom.flower.deploy.folder import CONNECTION, read_nodes
from fedloom.flower.protocol.experiment import read_experiment
from fedloom.flower.protocol.run_file import NODES_FILE
from fedloom.flower.server.run_state import RunState, read_state
from fedloom.runs.checkpoint.store import list_all
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import LOCK
from fedloom.runs.lock import in_use

LOOK = 1.0  # seconds between looks
FIRST, LONGEST = 5.0, 300.0  # seconds until a run is started again: at first, and at most
DIED = 5.0  # seconds without a lock on the run folder, after which a server app that had one has died
CRASHED = "failed with exception"  # in Flower's words for a server app that ended by an error
UNBEGUN = 60.0  # seconds until it is said that the link does not begin a run


class Deployed(NamedTuple):
    """What a deployment's folder says about its run."""

    app: Path
    experiment: Experiment
    out: Path  # the run folder, on the link's machine
    address: str  # of the link's Control API
    authority: Path


def read_deployment(folder: Path) -> Deployed:
    """Read a folder that `fedloom deploy` wrote, or a copy of it; its certificates lie in it or where it says."""
    folder = folder.absolute()
    try:
        config = tomllib.loads((folder / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
        link = tomllib.loads((folder / "home" / "config.toml").read_text())["superlink"][CONNECTION]
        named = Path(link["root-certificates"])
        own = folder / "certificates" / "ca.crt"
        authority = named if named.exists() else own
        experiment = read_experiment(config["experiment"])
        return Deployed(folder / "app", experiment, Path(config["out"]), link["address"], authority)
    except (OSError, KeyError, TypeError, tomllib.TOMLDecodeError) as problem:
        raise BadExperiment(
            f"'{folder}' is not the folder of a deployment ({type(problem).__name__}: {problem}); expected app/ and "
            "home/, as `fedloom deploy` writes them."
        ) from problem


Found = TypeVar("Found")


class End(NamedTuple):
    """How a run ended."""

    state: RunState | Literal["asked"]  # asked: stopped by its operator
    why: str


class Supervisor:
    """Starts a run, follows it, and starts it again."""

    def __init__(
        self,
        deployed: Deployed,
        control: Control,
        tell: Callable[[str], None],
        look: Callable[[], None] = lambda: None,
        first: float = FIRST,
    ) -> None:
        """`tell` is called with notes for the user, and `look` at every look; `first`: seconds of the first pause."""
        self._app, self._out, self._control = deployed.app, deployed.out, control
        self._tell, self._look, self._first, self._told = tell, look, first, ""
        self._nodes: str | None = None  # whose key hosts which clients, as the run was told; None: it is not known

    def run(self) -> End:
        """Start the run, and start it again until it is finished, refused or stopped by its operator."""
        pause = self._first
        while True:
            before, began = self._newest(), time.time()
            try:
                end = self._follow(self._begin(), began)
            except RunStopped as problem:
                end = End("stopped", str(problem))
            if end.state != "stopped":
                return end
            pause = self._first if self._newest() != before else min(LONGEST, 2 * pause)
            self._tell(f"the run stopped ({end.why}); it is started again in {pause:.0f} s")
            time.sleep(pause)

    def _newest(self) -> list[Path]:
        """The newest checkpoint, if there is one: another one is progress."""
        return list_all(self._out / "checkpoint")[:1]

    def _begin(self) -> int:
        """Start the run, as soon as the link answers, or find it going on; its number."""
        out = str(self._out)
        going_on = self._asked(lambda: self._control.going_on("out", out))
        if going_on is not None:
            self._say(f"run {going_on} goes on")
            return going_on
        self._nodes = self._nodes_now()
        run = self._asked(lambda: self._control.start(self._app, {"out": out, "resume": True}))
        self._say(f"run {run} was started")
        return run

    def _asked(self, call: Callable[[], Found]) -> Found:
        """What the link answers, as soon as it does."""
        import httpx

        while True:
            try:
                return call()
            except httpx.TransportError as problem:
                self._say(f"the link does not answer ({type(problem).__name__}: {problem}); waiting for it")
            time.sleep(LOOK)

    def _follow(self, run: int, began: float) -> End:
        """Wait until a run ends."""
        held, free, asked = False, time.monotonic(), time.monotonic()
        while True:
            self._look()
            self._pass_on()
            status = self._asked(lambda: self._control.status(run))
            if in_use(self._out / LOCK):
                held, free = True, time.monotonic()
            died = held and time.monotonic() - free > DIED
            if status.status == FINISHED or died:
                break
            if status.status != "running" and time.monotonic() - asked > UNBEGUN:
                self._say(
                    f"the link has not begun run {run}, which is {status.status}: its helper flower-superexec has "
                    "ended, or the command flwr-serverapp is not on its PATH; see its log, and start it again"
                )
            time.sleep(LOOK)
        if status.status != FINISHED:
            self._control.stop(run)
        elif status.outcome == "stopped":
            return End("asked", "it was stopped by its operator")
        found = read_state(self._out)
        if found is None and CRASHED in status.details:
            return End("refused", status.details)
        if found is None or found.time < began or found.state == "running":
            return End("stopped", "its process died" if died else status.details or "it says nothing")
        return End(found.state, found.why)

    def _pass_on(self) -> None:
        """Tell the run whose key hosts which clients, if the deployment was changed."""
        file = self._out / "checkpoint" / NODES_FILE
        if (nodes := self._nodes_now()) not in (None, self._nodes) and file.parent.is_dir():
            replace_file(file, [str(nodes).encode()])
            self._nodes = nodes

    def _nodes_now(self) -> str | None:
        """Whose key hosts which clients; None while the app's folder cannot be read, as when it is copied."""
        try:
            return read_nodes(self._app)
        except (OSError, KeyError, tomllib.TOMLDecodeError):
            return None

    def _say(self, note: str) -> None:
        """Tell what was not told last."""
        if note != self._told:
            self._tell(note)
        self._told = note
