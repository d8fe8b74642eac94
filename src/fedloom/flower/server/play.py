"""How is an experiment played on a network? As in the simulator, with nodes where its engine is."""

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
from fedloom.errors import BadData, BadExperiment, RunStopped
from fedloom.files import replace_file, writing
from fedloom.flower.node.host import experiment_of
from fedloom.flower.node.own_data import with_fleet
from fedloom.flower.protocol.packing import Packing
from fedloom.flower.server.mailbox import INTERVAL, Post
from fedloom.flower.server.network import Network
from fedloom.flower.server.roster import Roster
from fedloom.runs.build import prepare
from fedloom.runs.checkpoint.saver import Checkpoints, checkpoints_of
from fedloom.runs.folder import check
from fedloom.runs.play import play
from fedloom.runs.result import Result
from fedloom.runs.threads import threads_for
from fedloom.runs.watch import Watch

if TYPE_CHECKING:
    from flwr.serverapp import Grid

log = logging.getLogger("fedloom")

ABOUT = "network.json"  # in the run folder: the run's name, and how often it was started


class Terms(NamedTuple):
    """The run config, beside the experiment."""

    out: Path | None = None
    resume: bool = False
    deadline: float = 600.0  # seconds a round waits for replies
    checkpoints: Checkpoints = Checkpoints(1, None)
    quorum: int = 1  # replies without which a round does not count
    patience: float = 60.0  # seconds that nodes are waited for

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Terms:
        """From flat scalars; what is left out is usual."""
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
    """Play all rounds of the run config's experiment on the nodes of `grid`; nodes have waited for `age` seconds."""
    began = time.monotonic() - age
    if "experiment" not in config:
        raise BadExperiment("run config: 'experiment' is missing; it is the experiment as JSON text.")
    experiment, terms = experiment_of(str(config["experiment"])), Terms.read(config)
    check(terms.out, experiment, terms.resume)
    world = prepare(experiment)
    post = Post(grid, {"classes": world.classes}, 2 * terms.deadline + 60, interval, began)
    roster = Roster(post, world.clients, world.setting.fleet, experiment.clients, fedloom.__version__)
    roster.wait(terms.patience, log.info)
    if not roster.present():
        raise RunStopped(f"no node that hosts a client was there after {terms.patience:g} s; start nodes, then run.")
    if roster.own:
        if missing := roster.missing():
            raise RunStopped(f"nobody hosts clients {missing}, and only their nodes know their data; start those too.")
        world = with_fleet(world, experiment, roster.said, roster.tests)
    packing = Packing(world.method, world.setting, world.wire, experiment.codec)
    run, attempt = _name(terms)
    network = Network(post, roster, packing, run, attempt, terms.deadline, terms.quorum)
    world = world._replace(world=network, ranks=network)
    with threads_for([world]), computing(experiment.precision):
        return play(
            experiment, world, terms.out, watch or _logged, resume=terms.resume, checkpoints=terms.checkpoints,
            tell=log.info,
        )  # fmt: skip


def _name(terms: Terms) -> tuple[str, int]:
    """The run's name, which its nodes keep states under, and how often it was started."""
    if terms.out is None:
        return uuid.uuid4().hex, 1
    name, attempt = uuid.uuid4().hex, 1
    file = terms.out / "checkpoint" / ABOUT
    if terms.resume and file.exists():
        try:
            about = json.loads(file.read_text())
            name, attempt = str(about["run"]), int(about["attempt"]) + 1
        except (ValueError, KeyError, TypeError) as problem:
            raise BadData(f"'{file}' cannot be read ({problem}); it was written when the run began.") from problem
    with writing(terms.out):
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, [json.dumps({"run": name, "attempt": attempt}).encode()])
    return name, attempt


def _logged(row: dict[str, Any]) -> None:
    """A round's row in Flower's log."""
    accuracy = "" if row["accuracy"] is None else f", accuracy {row['accuracy']:.4f}"
    log.info(
        "round %d: %d of %d replies%s, %d bytes down, %d up, %.1f s",
        *(row["round"], row["arrived"], row["clients"], accuracy, row["bytes_down"], row["bytes_up"]),
        row["wall_seconds"],
    )
