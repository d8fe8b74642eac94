"""A deployment tried on one machine: a link and its nodes as real processes on loopback, with TLS and keys."""

from __future__ import annotations

import math
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

from fedloom.errors import BadExperiment, RunStopped
from fedloom.flower.deploy.address import Address
from fedloom.flower.deploy.control import Control, RunStatus, Scalars
from fedloom.flower.deploy.folder import (
    QUIET,
    WARM,
    Deployment,
    Gateway,
    gate_command,
    link_command,
    node_command,
    write_folder,
)
from fedloom.flower.deploy.largest_reply import largest_reply
from fedloom.flower.deploy.processes import Processes, stopped_by_signals
from fedloom.flower.deploy.relay import Relay, Traffic
from fedloom.flower.deploy.trial_result import TrialResult, read_result
from fedloom.flower.node.own_data import check_folder
from fedloom.flower.protocol.figures import METRICS, port_of_node
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import check, check_engine, resume_command, start_in
from fedloom.runs.inputs import Inputs, inputs_of
from fedloom.runs.watch import Watch

INTERVAL = 0.5  # seconds between looks at a run
PATIENCE = 300.0  # seconds for the link, and then for all nodes, to come up
SLACK = 3.0  # times the median node's seconds that a round waits for the others
POLLING = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}  # seconds until Flower starts an app for a message
TRIAL_AGAIN = "fedloom trial --resume"
CONFIG: dict[str, Any] = {
    "out": "", "resume": False, "deadline": 300.0, "checkpoint-every": "1", "keep": 2, "quorum": 1,
    "patience": PATIENCE, "start-with": 0.5, "slack": SLACK, "close-at": 0.5, "resume-with": "", "metrics": 0,
    "nodes": "",
}  # fmt: skip


@dataclass
class Trial:
    """A running link and its nodes; tests disturb them."""

    experiment: Experiment
    deployment: Deployment
    processes: Processes
    relay: Relay
    control: Control
    gateway: Gateway
    states: Path  # folder of the nodes' client states
    lasting: bool  # whether the link's own state is in a file, so that it can be started again
    metrics: int = 0  # the server's port for figures, and after it the nodes'; 0: none
    data: str = ""  # folder of the clients' own data; empty: nodes deal the experiment's
    numbers: list[int] = field(default_factory=list)  # Flower's numbers of the nodes
    times: dict[str, float] = field(default_factory=dict)  # seconds of each stage
    traffic: list[Traffic] = field(default_factory=list)  # on each node's connections during the run

    def start_link(self) -> None:
        """Start the link, or start it again; with a database it still has its registered nodes."""
        files, database = self.deployment.certificates, self.deployment.root / "link.db"
        self.processes.start("link", link_command(files, self.gateway.control, database if self.lasting else None))
        self.control.wait_for_link(PATIENCE, lambda: self.processes.running("link"))

    def start_gate(self) -> None:
        """Start the gate, or start it again; it listens soon, with the link's certificate of now."""
        self.processes.start("gate", gate_command(self.deployment.certificates.link.parent, self.gateway))

    def start_node(self, number: int) -> None:
        """Start a node, or start it again."""
        made, name = self.deployment, f"node-{number}"
        config = {"clients": made.clients[number], "data": self.data, "state": str(self.states / name)}
        link = f"127.0.0.1:{self.relay.ports[number]}"
        words = node_command(
            str(made.certificates.authority), str(made.keys[number].private), link, config, free_port()
        )
        extra = {"FLWR_HOME": str(made.root / "homes" / name), METRICS: str(port_of_node(self.metrics, number))}
        self.processes.start(name, [sys.executable, *WARM[1:], *words], extra)

    def wait_for_nodes(self, patience: float = PATIENCE) -> None:
        """Wait until all nodes are online."""
        until = time.monotonic() + patience
        while True:
            online = [number for number, status in self.control.nodes().items() if status == "online"]
            if set(self.numbers) <= set(online):
                return
            for name in self.processes.heads:
                if not self.processes.running(name):
                    raise RunStopped(
                        f"{name} ended before the run began; its output ends:\n{self.processes.last_lines(name)}"
                    )
            if time.monotonic() > until:
                missing = len(set(self.numbers) - set(online))
                raise RunStopped(f"{missing} of {len(self.numbers)} nodes did not come up within {patience:.0f} s.")
            time.sleep(INTERVAL)

    def wait(self, run: int, look: Callable[[], None] = lambda: None) -> RunStatus:
        """Wait until a run has ended; `look` is called every half second."""
        import httpx

        while True:
            self.processes.measure()
            look()
            with suppress(httpx.TransportError):  # the link may be busy, or have ended
                status = self.control.status(run)
                if status.status == "finished":
                    return status
            if not self.processes.running("link"):
                raise RunStopped(f"the link ended; its output ends:\n{self.processes.last_lines('link')}")
            time.sleep(INTERVAL)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add to a stage's seconds."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.times[name] = self.times.get(name, 0.0) + time.perf_counter() - began


def free_port() -> int:
    """A port of loopback on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(address: Address, patience: float, alive: Callable[[], bool]) -> None:
    """Wait until a process listens; raise if it ends, or does not within `patience` seconds."""
    until = time.monotonic() + patience
    while alive() and time.monotonic() < until:
        with suppress(OSError), socket.create_connection(address, 1):
            return
        time.sleep(0.05)
    raise RunStopped(f"nothing listens at {address}: the process ended, or took more than {patience:.0f} s")


def environment(home: Path, nodes: int) -> dict[str, str]:
    """Environment of all processes: Flower's settings, and threads for each node's part of the cores."""
    threads = str(max(1, (os.cpu_count() or 1) // nodes))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {"OMP_NUM_THREADS": threads, **os.environ, **QUIET, **POLLING, "FLWR_HOME": str(home), "PATH": path}


@contextmanager
def started(
    experiment: Experiment,
    nodes: int,
    root: Path,
    states: Path,
    config: Mapping[str, Any] | None = None,
    lasting: bool = False,
    inputs: Inputs | None = None,
    data: Path | None = None,
) -> Iterator[Trial]:
    """A link, its gate and nodes on loopback, all online; in any case all of them are stopped at the end."""
    began, own = time.perf_counter(), "" if data is None else str(data)
    reply = largest_reply(experiment, inputs or inputs_of(experiment), math.ceil(experiment.clients / nodes))
    gate, link = Address("127.0.0.1", free_port()), Address("127.0.0.1", free_port())
    made = write_folder(root, experiment, nodes, {**CONFIG, **(config or {})}, control=link)
    with ExitStack() as stack:
        stack.enter_context(stopped_by_signals())
        relay = stack.enter_context(Relay(*gate))
        processes = stack.enter_context(Processes(made.root / "logs", environment(made.home, nodes)))
        control = stack.enter_context(Control(str(link), made.certificates.authority))
        gateway, metrics = Gateway(gate, gate, link, reply), int((config or {}).get("metrics", 0))
        trial = Trial(experiment, made, processes, relay, control, gateway, states.absolute(), lasting, metrics, own)
        trial.times["folder and keys"] = time.perf_counter() - began
        with trial.timed("link up"):
            trial.start_gate()
            trial.start_link()
        with trial.timed("nodes up"):
            for number, key in enumerate(made.keys):
                relay.add()
                trial.numbers.append(control.register(key.public, key.private.name))
                trial.start_node(number)
            wait_for_port(gate, PATIENCE, lambda: processes.running("gate"))
            trial.wait_for_nodes()
        yield trial


def run_trial(
    experiment: Experiment,
    nodes: int,
    *,
    out: Path,
    resume: bool = False,
    deadline: float = CONFIG["deadline"],
    slack: float = SLACK,
    checkpoint_every: str = CONFIG["checkpoint-every"],
    keep: int = CONFIG["keep"],
    metrics: int = 0,
    data: Path | None = None,
    work: Path | None = None,
    watch: Watch | None = None,
    tell: Callable[[str], None] = lambda note: None,
) -> TrialResult:
    """Run an experiment on real processes and measure what it takes.

    Args:
        experiment: what to run, as in a simulation.
        nodes: number of nodes; clients are dealt to them in turn.
        out: the run folder, as a simulation writes it; nodes save their states next to it.
        resume: continue from the last checkpoint in `out`.
        deadline: seconds that a round waits for replies.
        slack: times the median node's seconds that a round waits for slower ones; 0: until the deadline.
        checkpoint_every: when checkpoints are written, as on the command line.
        keep: how many of the latest checkpoints are kept.
        metrics: a port of loopback for the server's figures, and those after it for the nodes'; 0: none.
        data: folder with a file `NUMBER.npz` of its own data for each client; the server has the experiment's.
        work: folder of app, keys and logs; a temporary folder if left out.
        watch: called with every round's row of the table.
        tell: called with messages for the user.
    """
    out, began = out.absolute(), time.perf_counter()
    check(out, experiment, resume)
    again = f"{TRIAL_AGAIN} {out} --nodes {nodes}"
    if data is not None:
        data = data.absolute()
        check_folder(data, experiment.clients)
        again += f" --node-data {data}"
    if resume:
        check_engine(out, network=True)
        if (command := resume_command(out)) and not command.startswith(TRIAL_AGAIN):
            raise BadExperiment(f"'{out}' is not the run of a trial; go on with `{command}`.")
        if command and command != again:
            raise BadExperiment(f"that run's nodes have their clients' states; go on with `{command}`.")
    inputs = inputs_of(experiment, start=start_in(out))
    states = out.with_name(f"{out.name}-nodes")
    with ExitStack() as stack:
        root = work or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedloom-trial-")))
        stop = time.perf_counter()
        terms = {"checkpoint-every": checkpoint_every, "keep": keep, "metrics": metrics}
        with started(experiment, nodes, root, states, terms, inputs=inputs, data=data) as trial:
            tell(f"a link, its gate and {nodes} nodes are up on 127.0.0.1, with TLS and a key each")
            config: Scalars = {"out": str(out), "resume": resume, "deadline": deadline, "slack": slack}
            config["resume-with"] = again
            before = [replace(traffic) for traffic in trial.relay.traffic]
            with trial.timed("run"):
                run = trial.control.start(trial.deployment.app, config)
                status = trial.wait(run, rounds_reporter(out, watch))
            trial.traffic = [now.since(then) for now, then in zip(trial.relay.traffic, before)]
            for name in trial.processes.heads:
                if not trial.processes.running(name):
                    tell(f"{name} ended before the run did; its output ends: {trial.processes.last_lines(name, 3)}")
            stop = time.perf_counter()
        trial.times["stop"] = time.perf_counter() - stop
        if status.outcome != "completed":
            why = status.details or trial.processes.last_lines("link", 20)
            raise RunStopped(f"the run {status.outcome or 'ended'}: {why}")
    return read_result(experiment, inputs, out, trial, time.perf_counter() - began)


def rounds_reporter(out: Path, watch: Watch | None) -> Callable[[], None]:
    """A function that calls `watch` with the rows that were added to a run's table since its last call."""
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
