"""How is a deployment tried on one machine? A link and its nodes as real processes on loopback, TLS and all."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedloom.errors import RunStopped
from fedloom.flower.deploy.control import Control, Scalars, State
from fedloom.flower.deploy.folder import WARM, Deployment, link_command, node_command, write_folder
from fedloom.flower.deploy.processes import Processes, stopped_by_signals
from fedloom.flower.deploy.relay import Relay, Traffic
from fedloom.flower.deploy.trial_result import Measured, measured
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import check
from fedloom.runs.inputs import inputs_of
from fedloom.runs.watch import Watch

LOOK = 0.5  # seconds between looks at a run
PATIENCE = 300.0  # seconds for the link, and then for all nodes, to come up
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
SOON = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}  # seconds until Flower starts an app for a message that has come
CONFIG: dict[str, Any] = {
    "out": "", "resume": False, "deadline": 300.0, "checkpoint-every": "1", "quorum": 1, "patience": PATIENCE,
}  # fmt: skip


@dataclass
class Trial:
    """A link and nodes that run; tests disturb them."""

    experiment: Experiment
    deployment: Deployment
    processes: Processes
    relay: Relay
    control: Control
    port: int
    states: Path  # where nodes keep their clients' states
    lasting: bool  # whether the link keeps in a file what it knows
    numbers: list[int] = field(default_factory=list)  # Flower's, of the nodes
    times: dict[str, float] = field(default_factory=dict)  # seconds of each stretch
    carried: list[Traffic] = field(default_factory=list)  # by each node's connections while the run was on

    def start_link(self) -> None:
        """Start the link, or start it again: it remembers who may come in."""
        files, database = self.deployment.certificates, self.deployment.root / "link.db"
        self.processes.start("link", link_command(files, "127.0.0.1", self.port, database if self.lasting else None))
        self.control.wait_for_link(PATIENCE, lambda: self.processes.running("link"))

    def start_node(self, number: int) -> None:
        """Start a node, or start it again."""
        made, name = self.deployment, f"node-{number}"
        config = {"clients": made.clients[number], "data": "", "state": str(self.states / name)}
        link = f"127.0.0.1:{self.relay.ports[number]}"
        words = node_command(
            str(made.certificates.authority), str(made.keys[number].private), link, config, free_port()
        )
        self.processes.start(name, [sys.executable, *WARM[1:], *words], {"FLWR_HOME": str(made.root / "homes" / name)})

    def wait_for_nodes(self, patience: float = PATIENCE) -> None:
        """Until all nodes have been let in."""
        until = time.monotonic() + patience
        while True:
            online = [number for number, status in self.control.nodes().items() if status == "online"]
            if set(self.numbers) <= set(online):
                return
            for name in self.processes.heads:
                if not self.processes.running(name):
                    raise RunStopped(f"{name} ended before the run began; it said:\n{self.processes.said(name)}")
            if time.monotonic() > until:
                missing = len(set(self.numbers) - set(online))
                raise RunStopped(f"{missing} of {len(self.numbers)} nodes did not come up within {patience:.0f} s.")
            time.sleep(LOOK)

    def wait(self, run: int, seen: Callable[[], None] = lambda: None) -> State:
        """Until a run is over; `seen` is called at every look."""
        import httpx

        while True:
            self.processes.measure()
            seen()
            with suppress(httpx.TransportError):  # it may be busy, or gone
                state = self.control.state(run)
                if state.status == "finished":
                    return state
            if not self.processes.running("link"):
                raise RunStopped(f"the link ended; it said:\n{self.processes.said('link')}")
            time.sleep(LOOK)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add up what a stretch takes."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.times[name] = self.times.get(name, 0.0) + time.perf_counter() - began


def free_port() -> int:
    """A port of loopback that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(home: Path, nodes: int) -> dict[str, str]:
    """What the processes are told: Flower's settings, and not to fight over the cores."""
    threads = str(max(1, (os.cpu_count() or 1) // nodes))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {"OMP_NUM_THREADS": threads, **os.environ, **QUIET, **SOON, "FLWR_HOME": str(home), "PATH": path}


@contextmanager
def started(
    experiment: Experiment,
    nodes: int,
    root: Path,
    states: Path,
    config: Mapping[str, Any] | None = None,
    lasting: bool = False,
) -> Iterator[Trial]:
    """A link and nodes on loopback, all let in; whatever happens, all of it is stopped at the end."""
    began = time.perf_counter()
    made, port = write_folder(root, experiment, nodes, {**CONFIG, **(config or {})}), free_port()
    with ExitStack() as stack:
        stack.enter_context(stopped_by_signals())
        relay = stack.enter_context(Relay("127.0.0.1", port))
        processes = stack.enter_context(Processes(made.root / "logs", environment(made.home, nodes)))
        control = stack.enter_context(Control(f"127.0.0.1:{port}", made.certificates.authority))
        trial = Trial(experiment, made, processes, relay, control, port, states.absolute(), lasting)
        trial.times["folder and keys"] = time.perf_counter() - began
        with trial.timed("link up"):
            trial.start_link()
        with trial.timed("nodes up"):
            for number, key in enumerate(made.keys):
                relay.add()
                trial.numbers.append(control.register(key.public, key.private.name))
                trial.start_node(number)
            trial.wait_for_nodes()
        yield trial


def run_trial(
    experiment: Experiment,
    nodes: int,
    *,
    out: Path,
    resume: bool = False,
    deadline: float = CONFIG["deadline"],
    checkpoint_every: str = CONFIG["checkpoint-every"],
    work: Path | None = None,
    watch: Watch | None = None,
    tell: Callable[[str], None] = lambda note: None,
) -> Measured:
    """Run an experiment on real processes, and say what it took.

    Args:
        experiment: what to run, as in a simulation.
        nodes: how many nodes; clients are dealt to them like cards.
        out: the run folder, as a simulation writes it; nodes keep their states beside it.
        resume: go on from the last checkpoint in `out`.
        deadline: seconds that a round waits for replies.
        checkpoint_every: when the run is saved, as on the command line.
        work: where app, keys and logs go; a folder that is removed afterwards if left out.
        watch: called with every round's row.
        tell: called with what should be known.
    """
    out, began = out.absolute(), time.perf_counter()
    check(out, experiment, resume)
    inputs = inputs_of(experiment)
    states = out.with_name(f"{out.name}-nodes")
    with ExitStack() as stack:
        root = work or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedloom-trial-")))
        stop = time.perf_counter()
        with started(experiment, nodes, root, states, {"checkpoint-every": checkpoint_every}) as trial:
            tell(f"a link and {nodes} nodes are up at 127.0.0.1:{trial.port}, with TLS and a key each")
            config: Scalars = {"out": str(out), "resume": resume, "deadline": deadline}
            before = [replace(traffic) for traffic in trial.relay.traffic]
            with trial.timed("run"):
                run = trial.control.start(trial.deployment.app, config)
                state = trial.wait(run, follow(out, watch))
            trial.carried = [now.since(then) for now, then in zip(trial.relay.traffic, before)]
            for name in trial.processes.heads:
                if not trial.processes.running(name):
                    tell(f"{name} ended before the run did; it said: {trial.processes.said(name, 3)}")
            stop = time.perf_counter()
        trial.times["stop"] = time.perf_counter() - stop
        if state.outcome != "completed":
            said = trial.processes.said("link", 20)
            raise RunStopped(f"the run {state.outcome or 'ended'}: {state.details or said}")
    return measured(experiment, inputs, out, trial, time.perf_counter() - began)


def follow(out: Path, watch: Watch | None) -> Callable[[], None]:
    """Tell `watch` of the rows that were added to a run's table since the last look."""
    from fedloom.runs.parquet import table_rows

    file, seen, changed = out / "rounds.parquet", 0, 0

    def look() -> None:
        nonlocal seen, changed
        if watch is None or not file.exists() or (now := file.stat().st_mtime_ns) == changed:
            return
        rows = table_rows(file)
        for row in rows[seen:]:
            watch(row)
        seen, changed = len(rows), now

    return look
