"""How is an experiment run? Round after round, evaluated and recorded; nothing is lost on an interrupt."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.chance import Chance
from fedloom.checkpoint.saver import Checkpoints, Saver
from fedloom.checkpoint.snapshot import Reached, put_back, take
from fedloom.checkpoint.store import Found
from fedloom.checkpoint.tensors import pack
from fedloom.data.dataset import Dataset
from fedloom.errors import RunStopped
from fedloom.evaluate.accuracy import evaluate
from fedloom.evaluate.personal import personal_accuracy
from fedloom.experiment import Experiment
from fedloom.files import replace_file, writing
from fedloom.folder import check, experiment_in, opened
from fedloom.interrupt import held
from fedloom.layout import load
from fedloom.ledger import Ledger
from fedloom.method import Method
from fedloom.part import NobodyLeft
from fedloom.round import play_round
from fedloom.select.everyone import SomeSend
from fedloom.simulation import Simulation, prepare
from fedloom.types import Setting, State
from fedloom.world.clock import processed

log = logging.getLogger("fedloom")

Watch = Callable[[dict[str, Any]], None]  # told of every round's row

SMALL = 20_000_000  # multiply-adds of a step of the whole cohort, about
TABLES_EVERY = 10.0  # seconds between writings of the tables while a run goes on


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
    resume: bool = False,
    checkpoints: Checkpoints | None = None,
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
        resume: go on from the last checkpoint in `out`, if there is one; only `rounds` may have grown since.
        checkpoints: when the run is saved; every 30 seconds and at the end if left out.
        watch: called with every round's row.
        tell: called with what should be known before the first round, such as the memory that the method takes.

    Returns:
        The trained network and one row a round. On Ctrl-C the round is finished and saved, and the interrupt goes on; a
        second Ctrl-C does not wait for the round.
    """
    folder, tell = None if out is None else Path(out), tell or (lambda note: None)
    check(folder, experiment, resume)
    world = prepare(experiment, method, model, data)
    for note in world.notes[1:]:  # how the data were dealt is in the log
        tell(note)
    started = time.perf_counter()
    ledger = Ledger(world.clients)
    with ExitStack() as stack:
        stack.enter_context(_threads(world))
        if folder is None:
            at = _play(experiment, world, ledger, _start(world), watch)
        else:
            mine = stack.enter_context(opened(folder, experiment, world, resume, checkpoints or Checkpoints()))
            at = _start(world) if mine.found is None else _resumed(experiment, world, ledger, mine.found, tell)
            at = _saved(folder, mine.saver, experiment, world, ledger, at, watch)
    network = load(world.network, world.setting.layout, at.model).cpu().eval()
    return Result(experiment, network, ledger.rounds(), time.perf_counter() - started, folder, ledger.kept)


def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    method: Method | None = None,
    model: nn.Module | None = None,
    data: Dataset | None = None,
    checkpoints: Checkpoints | None = None,
    watch: Watch | None = None,
    tell: Callable[[str], None] | None = None,
) -> Result:
    """Go on with the run in `folder`, to `rounds` rounds in all if that is more than it was begun with.

    What was passed to `run` in place of the experiment's method, network or data must be passed again.
    """
    experiment = experiment_in(Path(folder))
    if rounds is not None:
        experiment = Experiment(**{**experiment.model_dump(), "rounds": rounds})
    return run(
        experiment, method=method, model=model, data=data, out=folder, resume=True, checkpoints=checkpoints,
        watch=watch, tell=tell,
    )  # fmt: skip


def _start(world: Simulation) -> Reached:
    """Before the first round."""
    return Reached(0, world.model, world.method.init(world.setting, world.model))


def _resumed(
    experiment: Experiment, world: Simulation, ledger: Ledger, found: Found, tell: Callable[[str], None]
) -> Reached:
    """After the last round that was saved."""
    at = put_back(world, ledger, found)
    if at.round == experiment.rounds:
        note = f"this run is finished: all {at.round} rounds were played before; --rounds asks for more."
    else:
        note = f"resumed after round {at.round} of {experiment.rounds}"
        if at.round % experiment.evaluate_every:  # it was evaluated, if at all, for being the last
            ledger.unscore()
    log.info(note)
    tell(note)
    return at


def _saved(
    folder: Path,
    saver: Saver,
    experiment: Experiment,
    world: Simulation,
    ledger: Ledger,
    at: Reached,
    watch: Watch | None,
) -> Reached:
    """Play, and keep all that was done, whatever happens."""
    between, written = True, time.perf_counter()  # between rounds: only there is everything of one round

    def after(now: Reached | None) -> None:
        nonlocal at, between, written
        if now is None:
            between = False
            return
        at = now
        between = True
        saver.offer(at.round, lambda: take(world, ledger, now))
        if time.perf_counter() - written > TABLES_EVERY:
            with writing(folder):
                ledger.write(folder)
            written = time.perf_counter()
        interrupt.check()

    with held() as interrupt:
        try:
            return _play(experiment, world, ledger, at, watch, after)
        finally:  # also on Ctrl-C: the rounds that were finished are kept
            try:
                saver.end(at.round if between else 0, lambda: take(world, ledger, at))
            finally:
                with writing(folder):
                    ledger.write(folder)
                    _save_model(folder, world.setting, at.model)


def _play(
    experiment: Experiment,
    world: Simulation,
    ledger: Ledger,
    at: Reached,
    watch: Watch | None,
    after: Callable[[Reached | None], None] = lambda now: None,
) -> Reached:
    """The rounds that are left; `after` is told None when one begins, and where the run stands when it is over."""
    patience = experiment.world.patience
    silent = ledger.silent() % (patience or 1)  # a run that was given up is given another chance
    for number in range(at.round + 1, experiment.rounds + 1):
        after(None)
        try:
            at = _round(experiment, world, ledger, at)
        except NobodyLeft as why:
            log.info("over before round %d: %s", number, why)
            if number > 1 and ledger.last()["accuracy"] is None:
                _score(ledger, world, at.model)
            after(at)
            break
        after(at)
        if watch is not None:
            watch(ledger.last())
        silent = silent + 1 if world.world is not None and ledger.silent(1) else 0
        if patience is not None and silent == patience:
            raise RunStopped(
                f"nobody answered in {patience} rounds in a row, up to round {number}; the model is what it was before "
                "them. Look at the fleet, its channel and the deadline, or wait longer: world.patience."
            )
    return at


def _round(experiment: Experiment, world: Simulation, ledger: Ledger, at: Reached) -> Reached:
    """Play one round, evaluate if it is time to, and write it down."""
    began, method, setting = time.perf_counter(), world.method, world.setting
    engine = world.wire if world.world is None else world.world
    chance = Chance(experiment.seed, at.round + 1, at.model.device)
    weights, memory, task, reply = play_round(method, at.memory, at.model, setting, engine, chance)
    seconds, costs = time.perf_counter() - began, None if world.world is None else world.world.costs
    examples = processed(method.work, setting.fleet.examples[reply.ids])
    prices, kept = world.wire.priced or world.wire.prices(task, reply), method.record(memory)
    ledger.add(task, reply, seconds, prices, examples, costs, kept)
    if chance.round % experiment.evaluate_every == 0 or chance.round == experiment.rounds:
        _score(ledger, world, weights)
    return Reached(chance.round, weights, memory)


def _score(ledger: Ledger, world: Simulation, weights: Tensor) -> None:
    """Evaluate the model, and the clients' own where they have test splits."""
    own = None if world.own_test is None else personal_accuracy(world.engine, weights, *world.own_test)
    ledger.score(evaluate(world.setting, weights, world.test, world.classes), own)


@contextmanager
def _threads(world: Simulation) -> Iterator[None]:
    """One thread for small work: there several gain nothing, and lose tenfold when anything else runs."""
    before, select, cohort = torch.get_num_threads(), world.method.select, world.setting.fleet.size
    if not isinstance(select, SomeSend):  # under which all train
        cohort = getattr(select, "count", None) or cohort
    if world.setting.layout.total * max(1, world.method.work.batch) * cohort < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _save_model(folder: Path, setting: Setting, weights: Tensor) -> None:
    replace_file(folder / "model.safetensors", pack(setting.layout.split(weights)))
