"""How is an experiment run? Round after round, evaluated and recorded; nothing is lost on an interrupt."""

from __future__ import annotations

import json
import logging
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.data.dataset import Dataset
from fedloom.errors import BadExperiment
from fedloom.evaluate.accuracy import evaluate
from fedloom.evaluate.personal import personal_accuracy
from fedloom.experiment import Experiment
from fedloom.files import atomically
from fedloom.layout import load
from fedloom.ledger import Ledger
from fedloom.method import Method
from fedloom.part import NobodyLeft
from fedloom.round import play_round
from fedloom.simulation import Simulation, prepare
from fedloom.types import Setting, State
from fedloom.world.clock import processed

log = logging.getLogger("fedloom")

Watch = Callable[[dict[str, Any]], None]  # told of every round's row

SMALL = 20_000_000  # multiply-adds of a step of the whole cohort, about
SAVE_EVERY = 10.0  # seconds between writings of the tables while a run goes on


@dataclass(frozen=True)
class Result:
    """What came out of a run."""

    experiment: Experiment
    model: nn.Module  # the network with the trained weights, on the CPU
    rounds: list[dict[str, Any]]  # one row a round, as in rounds.parquet
    wall_seconds: float
    folder: Path | None
    kept: State  # larger tensors that the method's parts recorded of the last round, as in kept.safetensors

    @property
    def accuracy(self) -> float | None:
        """The last evaluated top-1 accuracy of the global model."""
        return next((row["accuracy"] for row in reversed(self.rounds) if row["accuracy"] is not None), None)

    def _total(self, name: str) -> float | None:
        """The sum over rounds; None where nothing is simulated."""
        values = [row[name] for row in self.rounds if row[name] is not None]
        return sum(values) if values else None

    def summary(self) -> dict[str, Any]:
        """One object for machines; None where nothing is known yet."""
        scored = [row for row in self.rounds if row["accuracy"] is not None]
        last: dict[str, Any] = scored[-1] if scored else {}
        return {
            "run": None if self.folder is None else str(self.folder),
            "method": self.experiment.method.name,
            "rounds": len(self.rounds),
            "accuracy": last.get("accuracy"),
            "best_accuracy": max((row["accuracy"] for row in scored), default=None),
            "personal_accuracy": last.get("personal_accuracy"),
            "loss": last.get("loss"),
            "examples_trained": sum(row["examples_trained"] for row in self.rounds),
            "bytes_up": sum(row["bytes_up"] for row in self.rounds),
            "bytes_down": sum(row["bytes_down"] for row in self.rounds),
            "virtual_seconds": self._total("virtual_seconds"),
            "joules": self._total("joules"),
            "wall_seconds": self.wall_seconds,
        }


def run(
    experiment: Experiment,
    *,
    method: Method | None = None,
    model: nn.Module | None = None,
    data: Dataset | None = None,
    out: str | Path | None = None,
    watch: Watch | None = None,
    tell: Callable[[str], None] | None = None,
) -> Result:
    """Run an experiment.

    Args:
        experiment: what to run; every name and setting in it has been checked.
        method: a method of your own in place of the experiment's.
        model: a network of your own in place of the experiment's.
        data: a data set of your own in place of the experiment's.
        out: the run folder; None writes nothing.
        watch: called with every round's row.
        tell: called with what should be known of the method before the first round, such as the memory it takes.

    Returns:
        The trained network and one row a round. On Ctrl-C what was done so far is written, and the interrupt goes on.
    """
    folder = None if out is None else Path(out)
    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadExperiment(f"out is '{folder}', which exists and is not empty; name a new folder.")
    world = prepare(experiment, method, model, data)
    if tell is not None:
        for note in world.notes[1:]:  # how the data were dealt is in the log
            tell(note)
    with threads_for([world]):
        return play(experiment, world, folder, watch)


def play(
    experiment: Experiment,
    world: Simulation,
    folder: Path | None = None,
    watch: Watch | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Result:
    """All rounds of what was prepared; `clock` counts the seconds that are the run's own."""
    method, setting, weights = world.method, world.setting, world.model
    engine = world.wire if world.world is None else world.world
    memory, ledger = method.init(setting, weights), Ledger(world.clients)
    started, saved = clock(), time.perf_counter()
    with _opened(folder, experiment, world):
        try:
            for number in range(1, experiment.rounds + 1):
                began = clock()
                chance = Chance(experiment.seed, number, weights.device)
                try:
                    weights, memory, task, reply = play_round(method, memory, weights, setting, engine, chance)
                except NobodyLeft as why:
                    log.info("over before round %d: %s", number, why)
                    if number > 1 and ledger.last()["accuracy"] is None:
                        _score(ledger, world, weights)
                    break
                seconds, costs = clock() - began, None if world.world is None else world.world.costs
                examples = processed(method.work, setting.fleet.examples[reply.ids])
                prices, kept = world.wire.priced or world.wire.prices(task, reply), method.record(memory)
                ledger.add(task, reply, seconds, prices, examples, costs, kept)
                if number % experiment.evaluate_every == 0 or number == experiment.rounds:
                    _score(ledger, world, weights)
                if watch is not None:
                    watch(ledger.last())
                if folder is not None and time.perf_counter() - saved > SAVE_EVERY:
                    ledger.write(folder)
                    saved = time.perf_counter()
        finally:  # also on Ctrl-C: the rounds that were finished are kept
            if folder is not None:
                ledger.write(folder)
                _save_model(folder, setting, weights)
    network = load(world.network, setting.layout, weights).cpu().eval()
    return Result(experiment, network, ledger.rounds(), clock() - started, folder, ledger.kept)


def _score(ledger: Ledger, world: Simulation, weights: Tensor) -> None:
    """Evaluate the model, and the clients' own where they have test splits."""
    own = None if world.own_test is None else personal_accuracy(world.engine, weights, *world.own_test)
    ledger.score(evaluate(world.setting, weights, world.test, world.classes), own)


@contextmanager
def _opened(folder: Path | None, experiment: Experiment, world: Simulation) -> Iterator[None]:
    """The run folder with its experiment written and its log open."""
    if folder is None:
        for note in world.notes:
            log.info(note)
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    about = {
        "experiment": experiment.model_dump(mode="json"),
        "method": repr(world.method),
        "versions": {name: version(name) for name in ("fedloom", "torch", "numpy")}
        | {"python": platform.python_version()},
        "device": str(world.model.device),
        "parameters": world.setting.layout.trained,
        "partition": world.notes[0],
        "notes": world.notes[1:],
    }
    atomically(folder / "experiment.json", lambda path: path.write_text(json.dumps(about, indent=2) + "\n"))
    handler = logging.FileHandler(folder / "log.txt")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    level = log.level
    log.setLevel(logging.INFO)
    try:
        for note in world.notes:
            log.info(note)
        yield
        log.info("finished")
    except BaseException as problem:
        log.info("stopped: %s", str(problem) or type(problem).__name__)
        raise
    finally:
        log.setLevel(level)
        log.removeHandler(handler)
        handler.close()


@contextmanager
def threads_for(worlds: Sequence[Simulation]) -> Iterator[None]:
    """One thread for small work: there several gain nothing, and lose tenfold when anything else runs."""
    before = torch.get_num_threads()
    if sum(w.setting.layout.total * max(1, w.method.work.batch) * w.cohort for w in worlds) < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _save_model(folder: Path, setting: Setting, weights: Tensor) -> None:
    tensors = {name: value.contiguous().cpu() for name, value in setting.layout.split(weights).items()}
    atomically(folder / "model.safetensors", lambda path: save_file(tensors, path))
