"""A deployment whose nodes are behind emulated links, for tests and benchmarks; and what its runs take."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulated_link import Counts, EmulatedLink
from fedloom.flower.deploy.address import Address
from fedloom.flower.deploy.control import Control
from fedloom.flower.deploy.folder import WARM, node_command, write_folder
from fedloom.flower.deploy.largest_reply import largest_reply
from fedloom.flower.deploy.processes import Processes, stopped_by_signals
from fedloom.flower.deploy.relay import Relay
from fedloom.flower.deploy.service_files import Gateway
from fedloom.flower.deploy.trial import CONFIG, PATIENCE, Trial, environment, free_port, wait_for_port
from fedloom.runs.experiment import Experiment
from fedloom.runs.inputs import inputs_of
from fedloom.runs.parquet import table_rows

LOOK = 0.05  # seconds between looks at a run's log
ROUND = " INFO round "  # in the log's line of a round


@dataclass
class Measured:
    """What a run's rounds took; the first one, in which connections are made and apps are fetched, is left out."""

    rounds: list[dict[str, Any]]  # rows of rounds.parquet
    up: float  # IP bytes of all links a round
    down: float
    lost: float  # packets a round

    @property
    def seconds(self) -> list[float]:
        """Of each round."""
        return [float(row["virtual_seconds"]) for row in self.rounds]


@contextmanager
def deployed(experiment: Experiment, links: Sequence[EmulatedLink], root: Path) -> Iterator[Trial]:
    """A link, its gate and a node behind each of these emulated links, all online.

    Other experiments may run on it whose replies are no larger, with as many clients.
    """
    reply = largest_reply(experiment, inputs_of(experiment), math.ceil(experiment.clients / len(links)))
    gate, control = Address("127.0.0.1", free_port()), Address("127.0.0.1", free_port())
    hosts = tuple(link.here for link in links)
    made = write_folder(root / "deployment", experiment, len(links), CONFIG, hosts, control)
    with ExitStack() as stack:
        stack.enter_context(stopped_by_signals())
        processes = stack.enter_context(Processes(root / "logs", environment(made.home, len(links))))
        operator = stack.enter_context(Control(str(control), made.certificates.authority))
        gateway = Gateway(gate, gate, control, reply)
        trial = Trial(experiment, made, processes, Relay(*gate), operator, gateway, root / "states", False)
        trial.start_gate()
        trial.start_link()
        wait_for_port(gate, PATIENCE, lambda: processes.running("gate"))
        for number, (link, key) in enumerate(zip(links, made.keys)):
            trial.numbers.append(operator.register(key.public, key.private.name))
            config = {"clients": made.clients[number], "data": "", "state": str(root / "states" / f"node-{number}")}
            address = f"{link.here}:{link.serve(gate.port)}"
            authority = str(made.certificates.authority)
            words = node_command(authority, str(key.private), address, config, free_port())
            home = {"FLWR_HOME": str(made.root / "homes" / f"node-{number}")}
            processes.start(f"node-{number}", link.command([sys.executable, *WARM[1:], *words]), home)
        trial.wait_for_nodes()
        yield trial


def measured(
    trial: Trial,
    links: Sequence[EmulatedLink],
    experiment: Experiment,
    out: Path,
    tell: Callable[[int], None] = lambda done: None,
) -> Measured:
    """Run an experiment to its end; `tell` is called with the number of rounds done."""
    config = {"experiment": experiment.model_dump_json(), "out": str(out), "deadline": 600.0, "slack": 0.0}
    run, log, marks, next_ = trial.control.start(trial.deployment.app, config), out / "log.txt", list[Counts](), 0.0
    while True:
        done = log.read_text().count(ROUND) if log.exists() else 0
        if done > len(marks):
            every = [link.counts() for link in links]
            total = Counts(*(sum(values) for values in zip(*every)))
            marks += [total] * (done - len(marks))
            tell(done)
        if time.monotonic() > next_:
            next_ = time.monotonic() + 1
            if (status := trial.control.status(run)).status == "finished":
                break
        time.sleep(LOOK)
    if status.outcome != "completed":
        raise AssertionError(f"the run {status.outcome}: {status.details}\n{trial.processes.last_lines('link', 20)}")
    count, whole = len(marks) - 1, marks[-1].since(marks[0])
    lost = (whole.lost_up + whole.lost_down) / count
    return Measured(table_rows(out / "rounds.parquet")[1:], whole.up / count, whole.down / count, lost)
