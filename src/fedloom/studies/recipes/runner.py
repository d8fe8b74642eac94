"""Runs of recipes: each once, those that train alike together, and each kept as soon as it is finished."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedloom.accel.machine import device_of
from fedloom.data.dataset import Dataset
from fedloom.errors import BadData, FedloomError
from fedloom.runs.dealing import dataset_of
from fedloom.runs.experiment import Experiment
from fedloom.runs.many_runs import kind_of, run_all
from fedloom.runs.result import Result
from fedloom.studies.bench.limits import machine
from fedloom.studies.recipes.measure import MEASURES
from fedloom.studies.recipes.recipe import Measure, Recipe, changed, tuned
from fedloom.studies.recipes.store import Kept, Store, key_of

Named = tuple[str, Experiment]  # the name to show, and the run
Tell = Callable[[str], None]
Watch = Callable[[str, int, dict[str, Any]], None]  # called with name, seed and row of every round


class Played(NamedTuple):
    """What became of the runs asked for."""

    recipes: list[Recipe]  # with the rates that were chosen
    rates: dict[str, dict[str, float]]  # by recipe and prefix, where rates were chosen
    ran: int  # runs that were played now
    kept: int  # runs that the store had before
    failed: dict[str, str]  # label -> reason
    left: int  # runs that there was no time for


def play(
    recipes: Sequence[Recipe], seeds: Sequence[int], out: Path, device: str, data_dir: Path | None, watch: Watch,
    tell: Tell, minutes: float | None = None,
) -> Played:  # fmt: skip
    """Choose the rates that are to be chosen, then run everything that `out` does not have yet."""
    store = Store(out)
    runner = Runner(store, device, data_dir, watch, tell, None if minutes is None else time.monotonic() + 60 * minutes)
    trials = {
        key_of(one): (f"{recipe.name}: {tuning.prefix}rate", one)
        for recipe in recipes
        for tuning in recipe.trials
        for one in tuning.runs
    }
    before = sum(store.has(one) for _, one in trials.values())
    runner.play(trials.values())
    rates = {recipe.name: chosen_rates(recipe, store) for recipe in recipes}
    final = [tuned(recipe, rates[recipe.name]) for recipe in recipes]
    unrated = {one.name: tuple(t.prefix for t in one.tuning if t.prefix not in rates[one.name]) for one in final}
    runs = {
        key_of(one): (f"{recipe.name} {label}", one)
        for recipe in final
        for label, experiment in recipe.asked.items()
        if not label.startswith(unrated[recipe.name])  # no rate, no run
        for one in (changed(experiment, seed=seed) for seed in seeds)
    }
    before += sum(store.has(one) for _, one in runs.values())
    runner.play(runs.values())
    return Played(final, rates, runner.ran, before, runner.failed, runner.left)


class Runner:
    """Plays runs that the store does not have, and counts what became of them."""

    def __init__(
        self, store: Store, device: str, data_dir: Path | None, watch: Watch, tell: Tell, until: float | None
    ) -> None:
        self.store, self.device, self.data_dir = store, device, data_dir
        self.watch, self.tell, self.until = watch, tell, until
        self.ran, self.left, self.failed = 0, 0, dict[str, str]()
        self._data: tuple[str, Dataset | None] = ("", None)  # the last data set
        self._missing: dict[str, str] = {}  # data set -> why it could not be loaded

    def play(self, runs: Iterable[Named]) -> None:
        """Play what is not in the store, group by group; no group begins after the time is over."""
        new = [(name, changed(one, device=self.device)) for name, one in runs if not self.store.has(one)]
        for group in groups_of(new):
            if self.until is not None and time.monotonic() > self.until:
                self.left += len(group)
            else:
                self._attempt(group)

    def _attempt(self, group: list[Named]) -> None:
        """Play a group; if a run fails, the others of its group are tried one by one."""
        with ThreadPoolExecutor(1) as thread:  # a GPU starts while data are read
            thread.submit(lambda: torch.zeros(1, device=device_of(self.device)))
            data = self._load(group[0][1])
        if data is None:
            self.failed |= dict.fromkeys((name for name, _ in group), self._missing[data_key(group[0][1])])
            return
        began = time.perf_counter()
        try:
            self._run(group, data)
        except (FedloomError, RuntimeError, MemoryError) as problem:  # the device's too, such as too little memory
            self._one_by_one(group, data, problem)
        finally:
            _free_memory()
        names = [name for name, _ in group]
        more = ", ..." if len(set(names)) > 1 else ""
        self.tell(f"{len(group)} runs ({names[0]}{more}): {time.perf_counter() - began:.1f} s")

    def _one_by_one(self, group: list[Named], data: Dataset, problem: Exception) -> None:
        """Play what is left of a group in which a run failed; a group of one has failed."""
        rest = [(name, one) for name, one in group if not self.store.has(one)]
        if len(group) == 1 or not rest:
            self.failed |= {name: _named(problem) for name, _ in rest}
            return
        _free_memory()
        for each in rest:
            try:
                self._run([each], data)
            except (FedloomError, RuntimeError, MemoryError) as own:
                self.failed[each[0]] = _named(own)

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

    def _load(self, experiment: Experiment) -> Dataset | None:
        """The data set, None if it cannot be loaded; the last one stays in memory."""
        key = data_key(experiment)
        if self._data[0] != key and key not in self._missing:
            try:
                goal = experiment.build_goal()
                self._data = (key, dataset_of(experiment, goal, folder=self.data_dir))
            except BadData as problem:
                self._missing[key] = str(problem)
                self.tell(str(problem))
        return self._data[1] if self._data[0] == key else None


def groups_of(runs: Iterable[Named]) -> list[list[Named]]:
    """Runs that may be trained together, sorted by data set so that each is read once."""
    found: dict[tuple[str, str], list[Named]] = {}
    for name, one in runs:
        kind = kind_of(one, one.build_method()) or key_of(one)
        found.setdefault((data_key(one), repr(kind)), []).append((name, one))
    return [found[key] for key in sorted(found, key=lambda key: key[0])]


def data_key(experiment: Experiment) -> str:
    """An experiment's data set and its settings, as JSON."""
    return experiment.data.model_dump_json()


def chosen_rates(recipe: Recipe, store: Store) -> dict[str, float]:
    """Prefix -> the rate of the best run, where all rates were tried; of equals the lowest."""
    found = {}
    for tuning in recipe.tuning:
        what = "personal" if tuning.experiment.split[2] else "late"
        kept = [store.load(one) for one in tuning.runs]
        scores = [MEASURES[what](one.run, Measure(what)) for one in kept if one is not None]
        if len(scores) == len(kept):
            found[tuning.prefix] = max(zip(scores, tuning.rates), key=lambda pair: (pair[0], -pair[1]))[1]
    return found


def kept_runs(recipe: Recipe, seeds: Sequence[int], store: Store) -> dict[tuple[str, int], Kept]:
    """Everything that the store has of a recipe, by label and seed."""
    found = {}
    for label, experiment in recipe.experiments.items():
        for seed in seeds:
            one = store.load(changed(experiment, seed=seed))
            if one is not None:
                found[label, seed] = one
    return found


def _named(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}"


def _free_memory() -> None:
    """Release what the last runs held, on a GPU too."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
