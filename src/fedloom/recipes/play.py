"""How are recipes run? Every run once, those alike together, each kept when it is over and not run again."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedloom.bench.limits import machine
from fedloom.data.dataset import Dataset
from fedloom.data.load import load
from fedloom.errors import BadData, FedloomError
from fedloom.experiment import Experiment
from fedloom.machine import device_of
from fedloom.recipes.measure import MEASURES
from fedloom.recipes.recipe import TUNING_SEED, Measure, Recipe, Tuning, changed, tuned
from fedloom.recipes.store import Kept, Store, key_of
from fedloom.result import Result
from fedloom.stack import kind_of, run_all

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
        self, store: Store, device: str, data_dir: Path | None, watch: Watch, tell: Tell, until: float | None
    ) -> None:
        self.store, self.device, self.data_dir = store, device, data_dir
        self.watch, self.tell, self.until = watch, tell, until
        self.ran, self.left, self.failed = 0, 0, dict[str, str]()
        self._data: tuple[str, Dataset | str] = ("", "")  # the last set, or why there is none

    def play(self, runs: dict[str, tuple[str, Experiment]]) -> None:
        """Play what is not in the store: by key the name to show and the experiment."""
        groups: dict[Any, list[tuple[str, Experiment]]] = {}
        for name, experiment in runs.values():
            if not self.store.has(experiment):
                here = changed(experiment, device=self.device)
                kind = kind_of(here, here.build_method()) or key_of(here)
                groups.setdefault((here.data.model_dump_json(), repr(kind)), []).append((name, here))
        for (_, _), group in sorted(groups.items(), key=lambda pair: pair[0][0]):  # a data set is read once
            if self.until is not None and time.monotonic() > self.until:
                self.left += len(group)
                continue
            self._together(group)

    def _together(self, group: list[tuple[str, Experiment]]) -> None:
        """Runs that might be trained together; if one fails the others of its group are tried one by one."""
        data = self._load(group[0][1])
        if isinstance(data, str):
            self.failed |= {name: data for name, _ in group}
            return
        began, names = time.perf_counter(), [name for name, _ in group]
        try:
            self._run(group, data)
        except FedloomError as problem:
            self._again(group, data, problem)
        except (RuntimeError, MemoryError) as problem:  # of the device, such as too little memory
            self._again(group, data, problem)
        _let_go()
        shown = f"{names[0]}, ..." if len(set(names)) > 1 else names[0]
        self.tell(f"{len(group)} runs ({shown}): {time.perf_counter() - began:.1f} s")

    def _again(self, group: list[tuple[str, Experiment]], data: Dataset, problem: Exception) -> None:
        """What is left of a group in which one failed."""
        rest = [(name, one) for name, one in group if not self.store.has(one)]
        if len(group) == 1 or not rest:
            self.failed |= {name: f"{type(problem).__name__}: {problem}" for name, _ in rest}
            return
        _let_go()
        for each in rest:
            try:
                self._run([each], data)
            except (FedloomError, RuntimeError, MemoryError) as own:
                self.failed[each[0]] = f"{type(own).__name__}: {own}"

    def _run(self, group: list[tuple[str, Experiment]], data: Dataset) -> None:
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

    def _load(self, experiment: Experiment) -> Dataset | str:
        """The data set; the last one is at hand."""
        name = experiment.data.model_dump_json()
        if self._data[0] != name:
            try:
                self._data = (name, load(experiment.data.name, folder=self.data_dir, **experiment.data.settings))
            except BadData as problem:
                self._data = (name, str(problem))
                self.tell(str(problem))
        return self._data[1]


def play(
    recipes: Sequence[Recipe], seeds: Sequence[int], out: Path, device: str, data_dir: Path | None, watch: Watch,
    tell: Tell, minutes: float | None = None,
) -> Played:  # fmt: skip
    """Choose the rates that are to be chosen, then run everything that `out` does not have yet."""
    store, until = Store(out), None if minutes is None else time.monotonic() + 60 * minutes
    stage = Stage(store, device, data_dir, watch, tell, until)
    tunings = {f"{recipe.name}: {one.prefix}": one for recipe in recipes for one in recipe.trials}
    trials = {key_of(one): (f"{name}rate", one) for name, tuning in tunings.items() for one in tried(tuning)}
    before = sum(store.has(one) for _, one in trials.values())
    stage.play(trials)
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
    stage.play(runs)
    return Played(final, rates, stage.ran, before, stage.failed, stage.left)


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
