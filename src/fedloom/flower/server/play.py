"""An experiment run on a network: as in simulation, with nodes in place of the engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedloom.accel.precision import computing
from fedloom.codec import base_hash
from fedloom.core.metric import Metric
from fedloom.core.types import Fleet
from fedloom.errors import BadExperiment, RunStopped
from fedloom.evaluate.wording import label_of, number
from fedloom.files import resume_with
from fedloom.flower.protocol.code import code_of
from fedloom.flower.protocol.experiment import read_experiment
from fedloom.flower.protocol.figures import figures_served
from fedloom.flower.protocol.first_weights import START, needed, packed
from fedloom.flower.protocol.owners import Owner, read_owners
from fedloom.flower.protocol.pace import pace_pulls
from fedloom.flower.protocol.packing import Packing
from fedloom.flower.server.arrivals import pull_as_they_come
from fedloom.flower.server.attempts import Attempts
from fedloom.flower.server.changed_owners import ChangedOwners
from fedloom.flower.server.checks import with_checks
from fedloom.flower.server.closing import Closing
from fedloom.flower.server.hello import Terms
from fedloom.flower.server.mailbox import INTERVAL, Mailbox
from fedloom.flower.server.network import Network
from fedloom.flower.server.reported_fleet import enter, recall, remember, with_reported_fleet
from fedloom.flower.server.roster import Roster
from fedloom.flower.server.run_state import stated
from fedloom.flower.server.status import SERVER, STEPS, STUCK, WAITING, Observed, Status
from fedloom.flower.server.stream import Stream
from fedloom.runs.base import hash_of_base
from fedloom.runs.build import Prepared, notes_of
from fedloom.runs.checkpoint.saver import Checkpoints, checkpoints_of
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import check, check_engine, start_in
from fedloom.runs.inputs import inputs_of
from fedloom.runs.log_files import facts
from fedloom.runs.play import play
from fedloom.runs.result import Result
from fedloom.runs.threads import threads_for
from fedloom.runs.watch import Watch
from fedloom.world.message_parts import MessageParts

if TYPE_CHECKING:
    from flwr.serverapp import Grid

log = logging.getLogger("fedloom")


class RunConfig(NamedTuple):
    """Flower's run config, without the experiment."""

    out: Path | None = None
    resume: bool = False
    deadline: float = 600.0  # seconds that a round waits for replies
    checkpoints: Checkpoints = Checkpoints(1, None)
    quorum: int = 1  # with fewer replies a round does not count
    patience: float = 60.0  # seconds that the first round waits for nodes
    start_with: float = 0.5  # share of the clients that must be there before the first round
    closing: Closing = Closing()
    resume_with: str = ""  # the command that resumes the run, for messages
    owners: tuple[Owner, ...] = ()  # whose key hosts which clients
    metrics: int = 0  # a port of loopback for figures and a health check; 0: none

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> RunConfig:
        """From flat scalars; what is left out has its default."""
        usual = cls()
        closing = usual.closing
        found = cls(
            Path(str(config["out"])) if config.get("out") else None,
            bool(config.get("resume", False)),
            float(config.get("deadline", usual.deadline)),
            checkpoints_of(str(config.get("checkpoint-every", "1")), int(config.get("keep", Checkpoints.keep))),
            int(config.get("quorum", 1)),
            float(config.get("patience", usual.patience)),
            float(config.get("start-with", usual.start_with)),
            closing._replace(
                slack=float(config.get("slack", closing.slack)), share=float(config.get("close-at", closing.share))
            ),
            str(config.get("resume-with", "")),
            read_owners(str(config.get("nodes", ""))),
            int(config.get("metrics", 0)),
        )
        for name, value in (("deadline", found.deadline), ("quorum", found.quorum), ("patience", found.patience)):
            if not value > 0:
                raise BadExperiment(f"run config: {name} is {value}; it must be above 0.")
        for name, value in (("start-with", found.start_with), ("close-at", found.closing.share)):
            if not 0 < value <= 1:
                raise BadExperiment(f"run config: {name} is {value}; it is a share of the clients, above 0, at most 1.")
        if not (found.closing.slack == 0 or 1 <= found.closing.slack < inf):
            raise BadExperiment(
                f"run config: slack is {found.closing.slack}; expected 0, to wait until the deadline, or 1 or more, "
                "times the seconds that the median node takes."
            )
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
    pull_as_they_come()
    with stated(Path(str(config["out"])) if config.get("out") else None):
        if "experiment" not in config:
            raise BadExperiment("run config: 'experiment' is missing; it is the experiment as JSON text.")
        experiment, run_config = read_experiment(str(config["experiment"])), RunConfig.read(config)
        command = run_config.resume_with.replace("{", "{{").replace("}", "}}") or resume_with.get()
        before = resume_with.set(command)
        score, limit = experiment.build_goal().score, max(2 * run_config.deadline, run_config.patience) + STUCK
        status = Status(run_config.out, experiment.rounds, limit, label_of(score))
        tell = status.noting(watch or _round_logger(score))
        try:
            with figures_served(run_config.metrics, status.figures, status.health):
                return _serve(grid, experiment, run_config, tell, interval, began, status)
        finally:
            resume_with.reset(before)


def _serve(
    grid: Grid,
    experiment: Experiment,
    config: RunConfig,
    watch: Watch,
    interval: float,
    began: float,
    status: Status,
) -> Result:
    """Run an experiment on the nodes of `grid`."""
    out, resume, deadline = config.out, config.resume, config.deadline
    check(out, experiment, resume)
    if resume and out is not None:
        check_engine(out, network=True)
    inputs = inputs_of(experiment, start=start_in(out) if resume else None)
    begins = experiment.start is not None and needed(inputs.method)
    common = inputs.widths._asdict() | ({START: base_hash(inputs.model)} if begins else {})
    mailbox = Mailbox(grid, common, 2 * deadline + 60, interval, began)
    base = hash_of_base(inputs.network, inputs.setting.layout)
    terms = Terms(
        inputs.clients, inputs.setting.fleet, experiment.clients, version("fedloom"), code_of(experiment), base,
        config.owners, packed(inputs.model) if begins else b"",
    )  # fmt: skip
    roster = Roster(mailbox, terms, ChangedOwners(out).read)
    roster.looked = partial(status.seen, roster)
    if resume:
        recall(out, roster)
    with status.doing(WAITING):
        roster.wait(config.patience, log.info)
    if lacking := roster.lacking(config.start_with):
        nobody = "" if roster.present() else "no node that hosts a client was there: "
        raise RunStopped(
            f"{nobody}{lacking}; start more nodes, which may take {config.patience:g} s to come, then run, or lower "
            f"start-with, which is {config.start_with:g}. Nodes that come later join."
        )
    roster.settle()
    if roster.own_data:
        inputs = with_reported_fleet(inputs, experiment, roster.reported, roster.own_tests)
    packing = Packing(inputs.method, inputs.setting, MessageParts(inputs.method, inputs.setting, experiment.codec))
    attempts = Attempts(out, resume)
    if roster.own_data:
        remember(out, roster)
        roster.entered = partial(_entered, inputs.setting.fleet, roster, out)
    network = Network(
        mailbox, roster, packing, attempts, deadline, config.quorum, inputs.own_test is not None, config.closing,
        config.resume_with,
    )  # fmt: skip
    inputs = inputs._replace(method=with_checks(inputs.method, experiment.admit.name, network.log_refused))
    stream = Stream(network, mailbox, roster, packing, attempts, deadline)
    prepared = Prepared(inputs, Observed(network, status), notes_of(experiment, inputs), timed=stream)
    phase = SERVER if inputs.method.pace.barrier else STEPS
    with threads_for([inputs]), computing(experiment.precision), status.doing(phase):
        return play(experiment, prepared, out, watch, resume=resume, checkpoints=config.checkpoints, tell=log.info)


def _entered(fleet: Fleet, roster: Roster, out: Path | None, node: int) -> None:
    """A node with data of its own came, or came again: its clients are counted from now on."""
    log.info("%s hosts some of the clients; %d of %d have come", roster.name(node), len(roster.reported), fleet.size)
    enter(fleet, roster.reported)
    remember(out, roster)


def _round_logger(metric: Metric) -> Watch:
    """A function that writes a round's row to Flower's log."""

    def write(row: dict[str, Any]) -> None:
        score = "" if row["score"] is None else f", {label_of(metric)} {number(metric, row['score'])}"
        log.info(
            "round %d: %d of %d replies%s, %d bytes down, %d up, %.1f s",
            *(row["round"], row["arrived"], row["clients"], score, row["bytes_down"], row["bytes_up"]),
            row["wall_seconds"],
            extra=facts("round", **{name: value for name, value in row.items() if isinstance(value, int | float)}),
        )

    return write
