"""Real SuperLink, SuperNodes and runs, as processes on loopback without TLS, for tests."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import fedloom
from fedloom.runs.experiment import Experiment

BIN = Path(sys.executable).parent
PYPROJECT = """[project]
name = "trial"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedloom"

[tool.flwr.app.components]
serverapp = "trial_app.server:app"
clientapp = "trial_app.client:app"

[tool.flwr.app.config]
experiment = ""
out = ""
resume = false
deadline = 60.0
checkpoint-every = "1"
quorum = 1
patience = 120.0
"""


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody uses now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Trial:
    """One SuperLink and its nodes; runs are started one after another."""

    def __init__(self, folder: Path, nodes: list[str], patience: float = 60.0, warm: bool = False) -> None:
        self.folder, self._ends, self._warm = folder, patience, warm
        self._link, *self._ports = free_ports(1 + len(nodes))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        home = folder / "home"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "trial"\n[superlink.trial]\naddress = "127.0.0.1:{self._link}"\ninsecure = true\n'
        )
        self._environment = {
            **os.environ,
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_HOME": str(home),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # seconds; Flower waits 1 otherwise
            "OMP_NUM_THREADS": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(Path(fedloom.__file__).parent.parent),
        }
        app = folder / "app"
        (app / "trial_app").mkdir(parents=True)
        (app / "pyproject.toml").write_text(PYPROJECT)
        (app / "trial_app" / "__init__.py").write_text("")
        for name in ("server", "client"):
            text = f"from fedloom.flower import {name}_app\n\napp = {name}_app()\n"
            (app / "trial_app" / f"{name}.py").write_text(text)
        self._start("link", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self._link),
                    "--disable-runtime-dependency-installation")  # fmt: skip
        self._until_open(self._link)
        for number, clients in enumerate(nodes):
            self.start_node(number, clients)

    def start_node(self, number: int, clients: str) -> None:
        """Start a SuperNode that hosts these clients."""
        config = f'clients="{clients}" state="{self.folder / f"state{number}"}"'
        before = ["python", "-m", "fedloom.flower.warm"] if self._warm else []
        self._start(f"node{number}", *before, "flower-supernode", "--insecure", "--superlink",
                    f"127.0.0.1:{self._link}", "--port", str(self._ports[number]), "--node-config", config)  # fmt: skip

    def run(self, experiment: Experiment, seconds: float = 120.0, **config: Any) -> str:
        """Play an experiment to its end; what was printed. The run folder is `config["out"]`."""
        process = self.begin(experiment, **config)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill(process)
            raise AssertionError(f"no end after {seconds} s\n{self.log('run')}") from None
        return self.log("run")

    def begin(self, experiment: Experiment, **config: Any) -> subprocess.Popen[bytes]:
        """Start a run."""
        values = {"experiment": json.dumps(experiment.model_dump(mode="json")), **config}
        file = self.folder / "run.toml"
        file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
        return self._start(
            "run", "flwr", "run", str(self.folder / "app"), "trial", "--run-config", str(file), "--stream"
        )

    def inside(self, name: str = "") -> list[int]:
        """The processes in this trial's folder, of that name: Flower starts some in sessions of their own."""
        found = []
        for folder in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                command = (folder / "cmdline").read_bytes().split(b"\0")
                named = any(word.endswith(name.encode()) for word in command[:2])
                if named and (folder / "cwd").resolve() == self.folder.resolve():
                    found.append(int(folder.name))
        return found

    def log(self, name: str) -> str:
        """What a process has printed."""
        return (self.folder / f"{name}.log").read_text()

    def kill(self, process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGKILL) -> None:
        """Signal a process and those it started, which are in its session."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, how)

    def stop(self) -> None:
        """End everything that was started here, politely first; whatever happens, nothing is left."""
        for process in self._started:
            self.kill(process, signal.SIGTERM)
        ends = time.monotonic() + 5
        while time.monotonic() < ends and any(process.poll() is None for process in self._started):
            time.sleep(0.1)
        for process in self._started:
            self.kill(process)
        for pid in self.inside():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.wait(30)

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]], stdout=log, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, env=self._environment, cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        self.processes[name] = process
        self._started.append(process)
        return process

    def _until_open(self, port: int) -> None:
        ends = time.monotonic() + self._ends
        while time.monotonic() < ends:
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        raise AssertionError(f"the SuperLink is not there\n{self.log('link')}")
