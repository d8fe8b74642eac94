"""How are recipes run? Every run once, those alike together, each kept when it is over and not run again."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple, ParamSpec

import torch

from fedloom.accel.machine import device_of
from fedloom.data.dataset import Dataset
from fedloom.data.load import at_hand, load
from fedloom.errors import BadData, FedloomError
from fedloom.runs.experiment import Experiment
from fedloom.runs.many_runs import run_all
from fedloom.runs.result import Result
from fedloom.studies.bench.limits import machine
from fedloom.studies.recipes.beside import Beside
from fedloom.studies.recipes.groups import Group, Named, fitting, groups_of, most, worth
from fedloom.studies.recipes.measure import MEASURES
from fedloom.studies.recipes.recipe import TUNING_SEED, Measure, Recipe, Tuning, changed, tuned
from fedloom.studies.recipes.store import Kept, Store, key_of

log = logging.getLogger("fedloom")

P = ParamSpec("P")
Tell = Callable[[str], None]
Watch = Callable[[str, int, dict[str, Any]], None]  # told name, seed and row of every round


class Played(NamedTuple):
    """What became of the runs asked for."""

    recipes: list[Recipe]  # with the rates that were chosen
    rates: dict[str, dict[str, float]]  # by recipe and prefix, where rates were chosen
    ran: int  # runs that were played now
    kept: int  # runs that were there before
    failed: dict[str, str]  # by label, why
    left: int  # runs that there was no time for


class Stage:
    """The store, the data and the clock of one command."""

    def __init__(
        self, store: Store, device: str, data_dir: Path | None, watch: Watch, tell: Tell, until: float | None = None
    ) -> None:
        self.store, self.device, self.data_dir = store, device, data_dir
        self.watch, self.tell, self.until = watch, tell, until
        self.ran, self.left, self.failed = 0, 0, dict[str, str]()
        self._data: tuple[str, Dataset | str] = ("", "")  # the last set, or why there is none
        self._told: set[str] = set()  # notes that other processes may tell too

    def may_begin(self) -> bool:
        """Is there time for more?"""
        return self.until is None or time.monotonic() <= self.until

    def play(self, runs: dict[str, tuple[str, Experiment]], beside: Beside, asked: int | None, most: int) -> None:
        """Play what is not in the store: by key the name to show and the experiment. Others may play beside."""
        new = [(name, changed(one, device=self.device)) for name, one in runs.values() if not self.store.has(one)]
        device = device_of(self.device)
        groups = groups_of(new, device.type)
        if not groups or not self.may_begin():
            self.left += len(new)
            return
        count = min(len(groups), asked or worth(groups, most))
        first = max(groups, key=lambda group: group.seconds).runs[0][1] if count > 1 else groups[0].runs[0][1]
        beside.grow(count - 1, first)  # they start while this process does
        self.get_ready(first)
        beside.keep((count if asked else fitting(groups, count, device)) - 1)
        if beside.count:
            self.tell(f"{len(groups)} groups of runs are played in {beside.count + 1} processes")
            for _, one in (group.runs[0] for group in groups):
                if not at_hand(one.data.name, self.data_dir):
                    self._load(one)  # fetched once, not by each
        for group, alone in beside.turns(groups):
            if not self.may_begin():
                self.left += len(group.runs)
                continue
            problem = self.attempt(group, alone)
            if problem is not None:
                self.tell(put_off(group, problem))
                beside.put_off(group)

    def get_ready(self, experiment: Experiment) -> None:
        """Start the device and read a run's data meanwhile, if they are there; what is wrong is told later."""
        with ThreadPoolExecutor(1) as thread:
            if at_hand(experiment.data.name, self.data_dir):
                thread.submit(self._load, experiment)
            torch.zeros(1, device=device_of(self.device))

    def attempt(self, group: Group, alone: bool) -> str | None:
        """Play a group; why it failed, where that may be for want of what others hold. Alone, runs that fail are named.

        If one fails the others of its group are tried one by one.
        """
        group = group._replace(runs=[(name, one) for name, one in group.runs if not self.store.has(one)])
        if not group.runs:
            return None
        data = self._load(group.runs[0][1])
        if isinstance(data, str):
            self.failed |= {name: data for name, _ in group.runs}
            return None
        began = time.perf_counter()
        try:
            self._run(group.runs, data)
        except (FedloomError, RuntimeError, MemoryError) as problem:  # the device's too, such as too little memory
            if not alone:
                return _named(problem)
            self._again(group.runs, data, problem)
        finally:
            _let_go()
        self.tell(f"{group}: {time.perf_counter() - began:.1f} s")
        return None

    def _again(self, group: list[Named], data: Dataset, problem: Exception) -> None:
        """What is left of a group in which one failed."""
        rest = [(name, one) for name, one in group if not self.store.has(one)]
        if len(group) == 1 or not rest:
            self.failed |= {name: _named(problem) for name, _ in rest}
            return
        _let_go()
        for each in rest:
            try:
                self._run([each], data)
            except (FedloomError, RuntimeError, MemoryError) as own:
                self.failed[each[0]] = _named(own)

    def hear(self, facts: dict[str, Any]) -> None:
        """What a process beside this one says."""
        for row in facts.get("rows", ()):
            self.watch(*row)
        if "note" in facts:
            self._tell_once(facts["note"])
        if "warning" in facts:
            log.warning("%s", facts["warning"])
        if "ran" in facts:
            self.ran += facts["ran"]
            self.failed |= facts["failed"]
            if facts["problem"] is not None:
                self.tell(put_off(facts["group"], facts["problem"]))
        if "gone" in facts:
            self.ran += 0 if facts["group"] is None else sum(self.store.has(one) for _, one in facts["group"].runs)
            log.warning("%s", gone(facts["gone"], facts["group"]))

    def _run(self, group: list[Named], data: Dataset) -> None:
        facts = {
            "machine": machine(device_of(self.device)),
            "data": {"train": len(data.y_train), "test": len(data.y_test)},
        }

        def done(place: int, result: Result) -> None:
            self.store.save(result, facts)
            self.ran += 1

        def watching(name: str, one: Experiment) -> Callable[[dict[str, Any]], None]:
            return lambda row: self.watch(name, one.seed, row)

        run_all([one for _, one in group], [watching(*each) for each in group], data=data, done=done)

    def _tell_once(self, note: str) -> None:
        if note not in self._told:
            self._told.add(note)
            self.tell(note)

    def _load(self, experiment: Experiment) -> Dataset | str:
        """The data set; the last one is at hand."""
        name = experiment.data.model_dump_json()
        if self._data[0] != name:
            try:
                self._data = (name, load(experiment.data.name, folder=self.data_dir, **experiment.data.settings))
            except BadData as problem:
                self._data = (name, str(problem))
                self._tell_once(str(problem))
        return self._data[1]


def play(
    recipes: Sequence[Recipe], seeds: Sequence[int], out: Path, device: str, data_dir: Path | None, watch: Watch,
    tell: Tell, minutes: float | None = None, processes: int | None = 1,
) -> Played:  # fmt: skip
    """Choose the rates that are to be chosen, then run everything that `out` does not have yet.

    So many `processes` play, this one among them; None: as many as are worth it, see `groups`.
    """
    until = None if minutes is None else time.monotonic() + 60 * minutes
    stage, lock = Stage(Store(out), device, data_dir, watch, tell, until), RLock()
    stage.watch, stage.tell, hear = _one_by_one(lock, watch), _one_by_one(lock, tell), _one_by_one(lock, stage.hear)
    first = {"out": str(out), "device": device, "data_dir": None if data_dir is None else str(data_dir)}
    many = most(device_of(device).type)  # before others share the cores
    with Beside(first, hear, stage.may_begin) as beside:
        return _play(recipes, seeds, stage, lambda runs: stage.play(runs, beside, processes, many))


def _play(
    recipes: Sequence[Recipe], seeds: Sequence[int], stage: Stage, run: Callable[[dict[str, Named]], None]
) -> Played:
    """The same with all at hand."""
    store = stage.store
    tunings = {f"{recipe.name}: {one.prefix}": one for recipe in recipes for one in recipe.trials}
    trials = {key_of(one): (f"{name}rate", one) for name, tuning in tunings.items() for one in tried(tuning)}
    before = sum(store.has(one) for _, one in trials.values())
    run(trials)
    rates = {recipe.name: chosen(recipe, store) for recipe in recipes}
    final = [tuned(recipe, rates[recipe.name]) for recipe in recipes]
    ready = [(recipe, rates[recipe.name]) for recipe in final]
    runs = {
        key_of(one): (f"{recipe.name} {label}", one)
        for recipe, known in ready
        for label, experiment in recipe.asked.items()
        if not any(label.startswith(t.prefix) and t.prefix not in known for t in recipe.tuning)  # no rate, no run
        for one in (changed(experiment, seed=seed) for seed in seeds)
    }
    before += sum(store.has(one) for _, one in runs.values())
    run(runs)
    return Played(final, rates, stage.ran, before, stage.failed, stage.left)


def _one_by_one(lock: RLock, call: Callable[P, None]) -> Callable[P, None]:
    """Several threads may call it, one at a time."""

    def locked(*args: P.args, **kwargs: P.kwargs) -> None:
        with lock:
            call(*args, **kwargs)

    return locked


def _named(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}"


def put_off(group: Group, problem: str) -> str:
    """For people: a group that had trouble beside others."""
    return f"{group} had trouble beside others and are played alone when these are over: {problem}"


def gone(why: str, group: Group | None) -> str:
    """For people: a process that is no more."""
    left = "it had nothing to play" if group is None else f"what it left of {group} is played here when others are over"
    return f"a process beside this one {why}; {left}. If memory was short, --processes 1 needs less."


def _let_go() -> None:
    """What runs held is free for the next."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def tried(tuning: Tuning) -> list[Experiment]:
    """The runs that choose a rate."""
    return [changed(tuning.experiment, training={"rate": rate}, seed=TUNING_SEED) for rate in tuning.rates]


def chosen(recipe: Recipe, store: Store) -> dict[str, float]:
    """The rate of the best run by prefix, where all were tried; of equals the lowest."""
    found = {}
    for tuning in recipe.tuning:
        what = "personal" if tuning.experiment.split[2] else "late"
        kept = [store.load(one) for one in tried(tuning)]
        scores = [MEASURES[what](one.run, Measure(what)) for one in kept if one is not None]
        if len(scores) == len(kept):
            found[tuning.prefix] = max(zip(scores, tuning.rates), key=lambda pair: (pair[0], -pair[1]))[1]
    return found


def kept_runs(recipe: Recipe, seeds: Sequence[int], store: Store) -> dict[tuple[str, int], Kept]:
    """Everything that the store has of a recipe."""
    found = {}
    for label, experiment in recipe.experiments.items():
        for seed in seeds:
            one = store.load(changed(experiment, seed=seed))
            if one is not None:
                found[label, seed] = one
    return found
