"""Real SuperLink, SuperNodes and runs, as processes on loopback without TLS, for tests."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fedloom
from fedloom.flower.deploy.processes import Processes, marked_processes
from fedloom.flower.deploy.trial import environment, free_port
from fedloom.flower.protocol.figures import METRICS
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
metrics = 0
"""


class Trial:
    """One SuperLink and its nodes; runs are started one after another."""

    def __init__(self, folder: Path, nodes: list[str], patience: float = 60.0, warm: bool = False) -> None:
        self.folder, self._warm = folder, warm
        home, app = folder / "home", folder / "app"
        source = str(Path(fedloom.__file__).parent.parent)
        variables = {**environment(home, 1), "OMP_NUM_THREADS": "1", "PYTHONPATH": source}
        self.processes = Processes(folder, variables)
        self.link = f"127.0.0.1:{(port := free_port())}"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "trial"\n[superlink.trial]\naddress = "{self.link}"\ninsecure = true\n'
        )
        (app / "trial_app").mkdir(parents=True)
        (app / "pyproject.toml").write_text(PYPROJECT)
        (app / "trial_app" / "__init__.py").write_text("")
        for name in ("server", "client"):
            text = f"from fedloom.flower import {name}_app\n\napp = {name}_app()\n"
            (app / "trial_app" / f"{name}.py").write_text(text)
        self._start("link", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port),
                    "--disable-runtime-dependency-installation")  # fmt: skip
        self._wait_for_link(port, patience)
        self.pages = [free_port() for _ in nodes]  # of a warm node's figures
        for number, clients in enumerate(nodes):
            self.start_node(number, clients)

    def start_node(self, number: int, clients: str) -> None:
        """Start a SuperNode that hosts these clients."""
        self._start_node(number, f'clients="{clients}" state="{self.folder / f"state{number}"}"')

    def _start_node(self, number: int, config: str) -> None:
        before = ["python", "-m", "fedloom.flower.warm"] if self._warm else []
        words = ["flower-supernode", "--insecure", "--superlink", self.link, "--port", str(free_port())]
        extra = {METRICS: str(self.pages[number])}
        self._start(f"node{number}", *before, *words, "--node-config", config, extra=extra)

    def run(self, experiment: Experiment, seconds: float = 120.0, **config: Any) -> str:
        """Run an experiment to its end; what was printed. The run folder is `config["out"]`."""
        process = self.begin(experiment, **config)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.processes.kill("run")
            raise AssertionError(f"no end after {seconds} s\n{self.log('run')}") from None
        return self.log("run")

    def begin(self, experiment: Experiment, **config: Any) -> subprocess.Popen[bytes]:
        """Start an experiment's run."""
        return self.begin_app(
            self.folder / "app", {"experiment": json.dumps(experiment.model_dump(mode="json")), **config}
        )

    def begin_app(self, app: Path, config: dict[str, Any]) -> subprocess.Popen[bytes]:
        """Start a run of any app folder."""
        file = self.folder / "run.toml"
        file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in config.items()))
        return self._start("run", "flwr", "run", str(app), "trial", "--run-config", str(file), "--stream")

    def running(self, name: str) -> list[int]:
        """The trial's processes of that name: Flower starts some in sessions of their own."""
        commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in marked_processes(self.processes.mark)}
        return [
            pid for pid, command in commands.items()
            if any(word.endswith(name.encode()) for word in command.split(b"\0")[:2])
        ]  # fmt: skip

    def log(self, name: str) -> str:
        """The output of a process."""
        return self.processes.output(name).read_text()

    def stop(self) -> None:
        """End everything that was started here."""
        self.processes.stop()

    def _start(self, name: str, *command: str, extra: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        self.processes.start(name, [str(BIN / command[0]), *command[1:]], extra)
        return self.processes.heads[name]

    def _wait_for_link(self, port: int, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        raise AssertionError(f"the SuperLink is not there\n{self.log('link')}")
