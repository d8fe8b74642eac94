"""Many runs at once: runs that train alike advance round by round, and their clients are trained together."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fedloom.accel.kept_memory import kept_memory
from fedloom.accel.precision import computing
from fedloom.core.types import State
from fedloom.data.dataset import Dataset
from fedloom.engine.client import Chunk, Learnt, initial_state
from fedloom.engine.joint import Answer, JointTraining, training_parts, why_apart, why_rule_apart
from fedloom.engine.local import Local
from fedloom.engine.storage.placement import flight_bytes, training_budget
from fedloom.method import Method
from fedloom.runs.build import Prepared, prepare
from fedloom.runs.coroutine_thread import CoroutineThread
from fedloom.runs.dealing import dataset_of
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import check, start_in, way_in
from fedloom.runs.play import play, run
from fedloom.runs.result import Result
from fedloom.runs.threads import threads_for
from fedloom.runs.watch import Watch

T = TypeVar("T")
CACHE = 2**23  # bytes of weights in training up to which stacking is faster on a CPU, by benchmarks/stacked.py

Clock = Callable[[], float]


def run_all(
    experiments: Sequence[Experiment],
    watches: Sequence[Watch | None],
    stack: bool = True,
    tell: Callable[[str], None] | None = None,
    data: Dataset | None = None,
    done: Callable[[int, Result], None] | None = None,
    folders: Sequence[Path | None] = (),
) -> list[Result]:
    """Run all experiments; their results in order. Runs on the same data that train alike are stacked, as many as fit.

    Args:
        experiments: what to run.
        watches: one per experiment, called with every round's row.
        stack: False runs one after another.
        tell: called with notes on which runs are trained together, or why they are not.
        data: the data set of all runs, in place of those that the experiments name.
        done: called with the place and the result of every finished run.
        folders: one per experiment, in which it is begun or goes on; none: nothing is written.
    """
    folders = folders or [None] * len(experiments)
    methods = [experiment.build_method() for experiment in experiments]
    kinds = [kind_of(*each) for each in zip(experiments, methods)]
    results: dict[int, Result] = {}
    noted: set[str] = set()

    def say(some: Sequence[Experiment], why: str | None) -> None:
        note = _note(some, why)
        if tell is not None and note is not None and note not in noted:
            tell(note)
            noted.add(note)

    waiting = list(range(len(experiments)))
    while waiting:
        first = waiting[0]
        group = [n for n in waiting if n == first or kinds[n] == kinds[first] is not None] if stack else [first]
        if len(group) == 1:
            say([experiments[first]], why_rule_apart(methods[first]) if stack else None)
            goes_on = folders[first] is not None
            results[first] = run(
                experiments[first], data=data, watch=watches[first], out=folders[first], resume=goes_on
            )
        else:
            prepared, why = _prepared([experiments[n] for n in group], data, [folders[n] for n in group])
            group = group[: len(prepared)]
            some = [experiments[n] for n in group]
            say(some, why)
            places = [folders[n] for n in group]
            results.update(zip(group, play_together(some, prepared, [watches[n] for n in group], places)))
        if done is not None:
            for n in group:
                done(n, results[n])
        waiting = [n for n in waiting if n not in results]
    return [results[n] for n in range(len(experiments))]


def play_together(
    experiments: Sequence[Experiment],
    runs: Sequence[Prepared],
    watches: Sequence[Watch | None],
    folders: Sequence[Path | None] = (),
) -> list[Result]:
    """Play prepared runs in step, each in its folder if it has one; their results in order."""
    folders = folders or [None] * len(runs)
    with (
        threads_for([run.inputs for run in runs]),
        computing(experiments[0].precision),
        kept_memory(),
        _existing_objects_frozen(),
    ):
        return in_step(
            [
                (local_of(run), partial(play, experiment, run, folder, watch, resume=folder is not None))
                for experiment, run, watch, folder in zip(experiments, runs, watches, folders)
            ]
        )


def local_of(run: Prepared) -> Local:
    """The engine that trains the clients of a run that can be stacked."""
    assert isinstance(run.trainer, Local)
    return run.trainer


@contextmanager
def _existing_objects_frozen() -> Iterator[None]:
    """Keep Python's garbage collector from visiting existing objects again and again: a thirtieth of the time."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def in_step(calls: Sequence[tuple[Local, Callable[[Clock], T]]]) -> list[T]:
    """Run calls that train with these engines, in step; each gets a clock of its own. Their results, in order.

    Once all unfinished calls wait for training, it is done for all together. One error ends all calls, as does Ctrl-C.
    """
    if len(calls) == 1:  # nothing is to be shared
        return [call(time.perf_counter) for _, call in calls]
    joint = JointTraining()
    threads = [_thread_of(engine, call) for engine, call in calls]
    try:
        asking = [(n, thread.begin()) for n, thread in enumerate(threads)]
        while asked := [(n, chunks) for n, chunks in asking if chunks is not None]:
            answers = joint([(calls[n][0], chunks) for n, chunks in asked])
            asking = [(n, threads[n].answer(answer)) for (n, _), answer in zip(asked, answers)]
    finally:
        for thread in threads:
            thread.abandon()  # no effect on finished calls
    return [thread.result for thread in threads]


def _thread_of(engine: Local, call: Callable[[Clock], T]) -> CoroutineThread[list[Chunk], Answer, T]:
    """A thread for a call whose engine asks for training instead of doing it."""

    def run_call(thread: CoroutineThread[list[Chunk], Answer, T]) -> T:
        def ask(chunks: list[Chunk]) -> list[tuple[Learnt, State]]:
            answer = thread.ask(chunks)
            thread.charge(answer.seconds)
            return answer.learnt

        with engine.trained_by(ask):
            return call(thread.clock)

    return CoroutineThread(run_call)


def kind_of(experiment: Experiment, method: Method) -> tuple[Any, ...] | None:
    """What runs must have in common to be trained together, if their networks agree too; None: this run cannot be."""
    if experiment.engine != "local" or why_rule_apart(method) is not None or experiment.build_attack() is not None:
        return None
    facts = (
        experiment.data,
        experiment.goal,
        experiment.augment,
        experiment.model,
        experiment.adapter,
        experiment.device,
        experiment.execution,
        experiment.chunk,
        experiment.way,
    )
    return *facts, experiment.precision, experiment.memory, *training_parts(method)


def _prepared(
    experiments: Sequence[Experiment], data: Dataset | None, folders: Sequence[Path | None]
) -> tuple[list[Prepared], str]:
    """The first of these runs with as many others as can be trained together, and why not more."""
    data = dataset_of(experiments[0], experiments[0].build_goal(), data)
    runs = [prepare_in(folders[0], experiments[0], data)]
    most, why = most_together(runs[0])
    taken = 1 / most  # cohorts may differ, so each run takes a different part
    for experiment, folder in zip(experiments[1:], folders[1:]):
        if taken + 1 / most > 1 + 1e-9:  # if it is like the last one
            break
        run = prepare_in(folder, experiment, data, runs[0])
        most, why = most_together(run)
        taken += 1 / most
        if taken > 1 + 1e-9:
            break
        runs.append(run)
    return runs, why


def prepare_in(folder: Path | None, experiment: Experiment, data: Dataset, sibling: Prepared | None = None) -> Prepared:
    """Prepare a run that is begun in this folder or goes on there."""
    check(folder, experiment, resume=folder is not None)
    way, start = (None, None) if folder is None else (way_in(folder), start_in(folder))
    return prepare(experiment, data=data, sibling=sibling, way=way, start=start)


def most_together(run: Prepared) -> tuple[float, str]:
    """How many runs like this one can be trained together, at least 1, and what limits the number."""
    engine, (method, setting, _, model, *_) = local_of(run), run.inputs
    if (why := why_apart(engine)) is not None:
        return 1.0, why
    own, cohort = initial_state(method, setting, model).values(), method.cohort_size(setting.fleet.size)
    server = [value for slot in method.init(setting, model).values() for value in slot.values()]
    state = sum(value.nbytes for value in own)
    kept = setting.fleet.size * state + sum(value.nbytes for value in server) + flight_bytes(method, setting, state)
    limits = {
        "more do not fit into memory": training_budget(model.device) / max(1, kept),
        "more would be more clients than are trained at a time": engine.chunk / cohort,
    }
    if model.device.type == "cpu":
        weights = cohort * model.nbytes
        limits["with more its clients' weights would not stay in the processor's cache"] = CACHE / weights
    why = min(limits, key=lambda name: limits[name])
    return max(1.0, limits[why]), why


def _note(experiments: Sequence[Experiment], why: str | None) -> str | None:
    """A note on which runs are trained together, or why they are not; None: there is nothing to note."""
    names = ", ".join(dict.fromkeys(one.method.name for one in experiments))
    if len(experiments) > 1:
        return f"{len(experiments)} runs are trained together: {names}"
    return None if why is None else f"runs of {names} are trained one by one: {why}"
