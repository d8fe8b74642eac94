"""An experiment run on a network: as in simulation, with nodes in place of the engine."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import fedloom
from fedloom.accel.precision import computing
from fedloom.core.metric import Metric
from fedloom.errors import BadData, BadExperiment, RunStopped
from fedloom.evaluate.wording import label_of, number
from fedloom.files import replace_file, writing
from fedloom.flower.protocol.experiment import read_experiment
from fedloom.flower.protocol.pace import pace_pulls
from fedloom.flower.protocol.packing import Packing
from fedloom.flower.server.checks import with_checks
from fedloom.flower.server.mailbox import INTERVAL, Mailbox
from fedloom.flower.server.network import Network
from fedloom.flower.server.reported_fleet import with_reported_fleet
from fedloom.flower.server.roster import Roster
from fedloom.runs.base import hash_of_base
from fedloom.runs.build import Prepared, notes_of
from fedloom.runs.checkpoint.saver import Checkpoints, checkpoints_of
from fedloom.runs.folder import check
from fedloom.runs.inputs import inputs_of
from fedloom.runs.play import play
from fedloom.runs.result import Result
from fedloom.runs.threads import threads_for
from fedloom.runs.watch import Watch
from fedloom.world.message_parts import MessageParts

if TYPE_CHECKING:
    from flwr.serverapp import Grid

log = logging.getLogger("fedloom")

RUN_FILE = "network.json"  # in the run folder: the run's name, and how often it was started


class RunConfig(NamedTuple):
    """Flower's run config, without the experiment."""

    out: Path | None = None
    resume: bool = False
    deadline: float = 600.0  # seconds that a round waits for replies
    checkpoints: Checkpoints = Checkpoints(1, None)
    quorum: int = 1  # with fewer replies a round does not count
    patience: float = 60.0  # seconds that the first round waits for nodes

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> RunConfig:
        """From flat scalars; what is left out has its default."""
        usual = cls()
        found = cls(
            Path(str(config["out"])) if config.get("out") else None,
            bool(config.get("resume", False)),
            float(config.get("deadline", usual.deadline)),
            checkpoints_of(str(config.get("checkpoint-every", "1"))),
            int(config.get("quorum", 1)),
            float(config.get("patience", usual.patience)),
        )
        for name, value in (("deadline", found.deadline), ("quorum", found.quorum), ("patience", found.patience)):
            if not value > 0:
                raise BadExperiment(f"run config: {name} is {value}; it must be above 0.")
        return found


def serve(
    grid: Grid,
    config: Mapping[str, Any],
    watch: Watch | None = None,
    interval: float = INTERVAL,
    age: float = 0.0,
) -> Result:
    """Run the run config's experiment on the nodes of `grid`, which have waited for `age` seconds."""
    began = time.monotonic() - age
    pace_pulls()
    if "experiment" not in config:
        raise BadExperiment("run config: 'experiment' is missing; it is the experiment as JSON text.")
    experiment, run_config = read_experiment(str(config["experiment"])), RunConfig.read(config)
    out, resume, deadline = run_config.out, run_config.resume, run_config.deadline
    check(out, experiment, resume)
    inputs = inputs_of(experiment)
    mailbox = Mailbox(grid, inputs.widths._asdict(), 2 * deadline + 60, interval, began)
    base = hash_of_base(inputs.network, inputs.setting.layout)
    roster = Roster(mailbox, inputs.clients, inputs.setting.fleet, experiment.clients, fedloom.__version__, base)
    roster.wait(run_config.patience, log.info)
    if not roster.present():
        raise RunStopped(
            f"no node that hosts a client was there after {run_config.patience:g} s; start nodes, then run."
        )
    if roster.own_data:
        if missing := roster.missing():
            raise RunStopped(f"no node hosts clients {missing}, and only their nodes have their data; start those too.")
        inputs = with_reported_fleet(inputs, experiment, roster.reported, roster.own_tests)
    packing = Packing(inputs.method, inputs.setting, MessageParts(inputs.method, inputs.setting, experiment.codec))
    run, attempt = _run_name(run_config)
    own_tests = inputs.own_test is not None
    network = Network(mailbox, roster, packing, run, attempt, deadline, run_config.quorum, own_tests)
    inputs = inputs._replace(method=with_checks(inputs.method, experiment.admit.name, network.log_refused))
    prepared = Prepared(inputs, network, notes_of(experiment, inputs))
    with threads_for([inputs]), computing(experiment.precision):
        return play(
            experiment, prepared, out, watch or _round_logger(inputs.setting.goal.score), resume=resume,
            checkpoints=run_config.checkpoints, tell=log.info,
        )  # fmt: skip


def _run_name(config: RunConfig) -> tuple[str, int]:
    """The run's name, under which nodes save states, and how often the run was started."""
    if config.out is None:
        return uuid.uuid4().hex, 1
    name, attempt = uuid.uuid4().hex, 1
    file = config.out / "checkpoint" / RUN_FILE
    if config.resume and file.exists():
        try:
            read = json.loads(file.read_text())
            name, attempt = str(read["run"]), int(read["attempt"]) + 1
        except (ValueError, KeyError, TypeError) as problem:
            raise BadData(f"'{file}' cannot be read ({problem}); it was written when the run began.") from problem
    with writing(config.out):
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, [json.dumps({"run": name, "attempt": attempt}).encode()])
    return name, attempt


def _round_logger(metric: Metric) -> Watch:
    """A function that writes a round's row to Flower's log."""

    def write(row: dict[str, Any]) -> None:
        score = "" if row["score"] is None else f", {label_of(metric)} {number(metric, row['score'])}"
        log.info(
            "round %d: %d of %d replies%s, %d bytes down, %d up, %.1f s",
            *(row["round"], row["arrived"], row["clients"], score, row["bytes_down"], row["bytes_up"]),
            row["wall_seconds"],
        )

    return write
