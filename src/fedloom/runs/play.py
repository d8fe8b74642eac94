"""A run: its rounds are played, evaluated and recorded; an interrupt loses nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from fedloom.accel.kept_memory import kept_memory
from fedloom.accel.precision import computing
from fedloom.core.clock import Compute, full_seconds, processed
from fedloom.core.goal import Goal, Loss, Transform
from fedloom.data.sources import as_dataset
from fedloom.errors import BadExperiment
from fedloom.files import writing
from fedloom.goals.own import changed
from fedloom.layout import load
from fedloom.method import Method
from fedloom.runs.all_rounds import play_rounds
from fedloom.runs.build import Prepared, prepare
from fedloom.runs.checkpoint.saver import Checkpoints, Saver
from fedloom.runs.checkpoint.snapshot import Progress, restore_snapshot, take_snapshot
from fedloom.runs.checkpoint.store import Found
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import check, check_engine, experiment_in, open_folder, save_model, start_in, way_in
from fedloom.runs.inputs import Inputs
from fedloom.runs.interrupt import delayed_interrupt
from fedloom.runs.ledger import Ledger
from fedloom.runs.log_files import early_warnings
from fedloom.runs.one_round import due
from fedloom.runs.result import Result
from fedloom.runs.threads import threads_for
from fedloom.runs.torchrun import run_on_ranks
from fedloom.runs.watch import Callback, Calls, Watch
from fedloom.step import begin_flight

log = logging.getLogger("fedloom")

TABLES_EVERY = 10.0  # seconds between writings of the tables while a run goes on


def run(
    experiment: Experiment,
    *,
    method: Method | None = None,
    model: nn.Module | None = None,
    data: Any = None,
    goal: Goal | None = None,
    loss: Loss | None = None,
    metrics: Sequence[Any] | None = None,
    transform: Transform | None = None,
    start: str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    checkpoints: Checkpoints | None = None,
    watch: Watch | None = None,
    callbacks: Sequence[Callback] = (),
    tell: Callable[[str], None] | None = None,
) -> Result:
    """Run an experiment.

    Args:
        experiment: what to run; every name and setting in it has been checked.
        method: a method of your own in place of the experiment's.
        model: a network of your own in place of the experiment's.
        data: data of your own in place of the experiment's, of any kind that `fedloom.as_dataset` takes.
        goal: a goal of your own in place of the experiment's.
        loss: a loss of your own in place of the goal's: `(outputs, targets) -> [B]`, one number per example.
        metrics: metrics of your own in place of the goal's; the first is the score.
        transform: a change of training examples `(x, y, keys) -> x, y`, after those of `experiment.augment`.
        start: a run folder or a .safetensors file whose weights the model begins with, in place of the experiment's.
        out: the run folder; None writes nothing.
        resume: go on from the last checkpoint in `out`, if there is one; of the settings only `rounds` may be larger.
        checkpoints: when the run is saved; every 30 seconds and at the end if left out.
        watch: called with every round's row; where it returns "stop", the run ends with that round.
        callbacks: objects that are told when the run begins, of every round's row, and when it ends.
        tell: called with notes before the first round, such as the memory that the method takes.

    Returns:
        The trained network and one row per round. On Ctrl-C the round is finished and saved, and then the interrupt is
        raised; a second Ctrl-C does not wait for the round.
    """
    if start is not None:
        experiment = Experiment(**{**experiment.model_dump(), "start": str(start)})
    if loss is not None or metrics is not None:
        goal = changed(goal or experiment.build_goal(), loss, metrics)
    given = None if data is None else as_dataset(data, tell)
    made = partial(prepare, experiment, method, model, given, goal=goal, transform=transform)

    calls = Calls(callbacks, watch)

    def play() -> Result:
        with early_warnings(), calls.told(experiment, None if out is None else Path(out)):
            calls.result = _run(experiment, made, out, resume, checkpoints, calls.watch, tell or (lambda note: None))
        return calls.result

    if experiment.engine != "distributed":
        return play()
    if resume:
        raise BadExperiment(
            "resume does not go with engine=distributed: clients' states lie with many ranks; use local."
        )
    return run_on_ranks(experiment, play, made)


def _run(
    experiment: Experiment,
    made: Callable[..., Prepared],
    out: str | Path | None,
    resume: bool,
    checkpoints: Checkpoints | None,
    watch: Watch | None,
    tell: Callable[[str], None],
) -> Result:
    """Play all rounds in this process; the engine trains here or on other ranks."""
    folder = None if out is None else Path(out)
    check(folder, experiment, resume)
    if resume and folder is not None:
        check_engine(folder, network=False)
    prepared = made(way=way_in(folder), start=start_in(folder)) if resume and folder is not None else made()
    for note in prepared.notes:
        tell(note)
    with threads_for([prepared.inputs]), computing(experiment.precision), kept_memory():
        return play(experiment, prepared, folder, watch, resume=resume, checkpoints=checkpoints, tell=tell)


def play(
    experiment: Experiment,
    prepared: Prepared,
    folder: Path | None = None,
    watch: Watch | None = None,
    clock: Callable[[], float] = time.perf_counter,
    *,
    resume: bool = False,
    checkpoints: Checkpoints | None = None,
    tell: Callable[[str], None] = lambda note: None,
) -> Result:
    """Play all rounds of a prepared run; `clock` counts the seconds that the run itself takes."""
    started, ledger = clock(), ledger_of(prepared.inputs, experiment.world.compute)
    with ExitStack() as stack:
        if folder is None:
            at = play_rounds(experiment, prepared, ledger, _start(prepared), watch, clock)
        else:
            mine = stack.enter_context(open_folder(folder, experiment, prepared, resume, checkpoints or Checkpoints()))
            at = _start(prepared) if mine.found is None else _resume(experiment, prepared, ledger, mine.found, tell)
            at = _play_and_save(folder, mine.saver, experiment, prepared, ledger, at, watch)
        outcome = prepared.inputs.method.outcome(prepared.inputs.setting, at.round)
        for name, value in outcome.items():
            log.info("%s: %s", name, value)
    network = load(prepared.inputs.network, prepared.inputs.setting.layout, at.model).cpu().eval()
    seconds = clock() - started
    goal = prepared.inputs.setting.goal
    return Result(experiment, network, ledger.rounds(), seconds, folder, ledger.tensors, outcome, goal)


def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    method: Method | None = None,
    model: nn.Module | None = None,
    data: Any = None,
    goal: Goal | None = None,
    loss: Loss | None = None,
    metrics: Sequence[Any] | None = None,
    transform: Transform | None = None,
    checkpoints: Checkpoints | None = None,
    watch: Watch | None = None,
    callbacks: Sequence[Callback] = (),
    tell: Callable[[str], None] | None = None,
) -> Result:
    """Go on with the run in `folder`, to `rounds` rounds in all if these are more than it was begun with.

    What was passed to `run` in place of the experiment's must be passed again.
    """
    experiment = experiment_in(Path(folder))
    if rounds is not None:
        experiment = Experiment(**{**experiment.model_dump(), "rounds": rounds})
    return run(
        experiment, method=method, model=model, data=data, goal=goal, loss=loss, metrics=metrics, transform=transform,
        out=folder, resume=True, checkpoints=checkpoints, watch=watch, callbacks=callbacks, tell=tell,
    )  # fmt: skip


def ledger_of(inputs: Inputs, compute: Compute = "cycles") -> Ledger:
    """An empty ledger for a run on these inputs; `compute`: how the world reckons seconds of training."""
    setting, work, names = inputs.setting, inputs.method.work, inputs.client_names or ()
    devices = setting.fleet.devices
    whole = None if devices is None else full_seconds(setting, devices, work, compute).total
    return Ledger(
        inputs.clients, setting.layout, processed(work, setting.fleet.examples), setting.goal, names, whole,
        inputs.validation is not None,
    )  # fmt: skip


def _start(prepared: Prepared) -> Progress:
    """The progress before the first round."""
    inputs = prepared.inputs
    method, setting, model = inputs.method, inputs.setting, inputs.model
    flight = None if method.pace.barrier else begin_flight(method, setting, model)
    return Progress(0, model, method.init(setting, model), flight)


def _resume(
    experiment: Experiment, prepared: Prepared, ledger: Ledger, found: Found, tell: Callable[[str], None]
) -> Progress:
    """The progress after the last round that was saved."""
    at = restore_snapshot(prepared, ledger, found)
    if at.round == experiment.rounds:
        note = f"this run is finished: all {at.round} rounds were played before; --rounds asks for more."
    else:
        note = f"resumed after round {at.round} of {experiment.rounds}"
        before, now = ledger.clock()
        at = at._replace(seconds=now)
        if not due(experiment, at.round, before, now):  # if it was evaluated, only because it was the last round
            ledger.drop_score()
    log.info(note)
    tell(note)
    return at


def _play_and_save(
    folder: Path,
    saver: Saver,
    experiment: Experiment,
    prepared: Prepared,
    ledger: Ledger,
    at: Progress,
    watch: Watch | None,
) -> Progress:
    """Play the rounds that are left, and save every finished round, also on errors and interrupts."""
    between, written = True, time.perf_counter()  # between rounds: only then does all state belong to one round

    def after(now: Progress | None) -> None:
        nonlocal at, between, written
        if now is None:
            between = False
            return
        at = now
        between = True
        saver.offer(at.round, lambda: take_snapshot(prepared, ledger, now))
        if time.perf_counter() - written > TABLES_EVERY:
            with writing(folder):
                ledger.write(folder, at.flight)
            written = time.perf_counter()
        interrupt.check()

    with delayed_interrupt() as interrupt:
        try:
            return play_rounds(experiment, prepared, ledger, at, watch, after=after)
        finally:  # also on Ctrl-C: finished rounds are saved
            try:
                saver.end(at.round if between else 0, lambda: take_snapshot(prepared, ledger, at))
            finally:
                with writing(folder):
                    ledger.write(folder, at.flight)
                    save_model(folder, prepared.inputs.setting, at.model)
