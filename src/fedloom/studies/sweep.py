"""Sweeps: settings of several methods, tried equally, chosen on validation examples and reported on the test set."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan, prod
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.core.metric import Metric
from fedloom.errors import BadExperiment
from fedloom.evaluate.targets import Interval, interval
from fedloom.files import replace_file, writing
from fedloom.reading.texts import read_json
from fedloom.report.group import plain
from fedloom.runs.columns import VALIDATION
from fedloom.runs.experiment import Experiment
from fedloom.runs.result import Result
from fedloom.runs.watch import Tell
from fedloom.studies.checks import named
from fedloom.studies.compare import Contender, compare
from fedloom.studies.forms import experiment_of, takes
from fedloom.studies.plan import spelled
from fedloom.studies.search import Point, search_of
from fedloom.studies.space import Space, Tried, plain_space, read_space

ABOUT = "sweep.json"
VALIDATED = 0.2  # of each client's training examples, where the experiment keeps none for validation

Watch = Callable[[str, int, dict[str, Any]], None]


class Asked(NamedTuple):
    """What is swept: all that decides which runs there are."""

    methods: tuple[str, ...]
    space: dict[str, Tried]
    seeds: tuple[int, ...]
    search: str
    trials: int | None
    values: dict[str, Any]  # of the experiments
    settings: dict[str, Any]  # that are the same in all of them, as in `--set`, where a method takes them


@dataclass(frozen=True)
class Cell:
    """A method with one choice of settings, under all seeds."""

    method: str
    settings: Point
    contender: Contender

    @property
    def test(self) -> Interval:
        """The final score on the test set, over seeds."""
        return self.contender.score()

    @property
    def validation(self) -> Interval:
        """The final score on the validation examples, over seeds; NaN if a seed has none that is finite."""
        return interval([validation_of(result) for result in self.contender.results])


@dataclass(frozen=True)
class Sweep:
    """All cells of a sweep, in the order in which they were tried."""

    cells: tuple[Cell, ...]
    folder: Path | None = None

    @property
    def metric(self) -> Metric:
        """The metric that is the score."""
        return self.cells[0].contender.metric

    @property
    def best(self) -> dict[str, Cell]:
        """The cell of each method with the best mean score on the validation examples; the first of equals."""
        sign = 1 if self.metric.best == "high" else -1

        def worth(cell: Cell) -> float:
            return sign * cell.validation.mean if isfinite(cell.validation.mean) else -float("inf")

        methods = dict.fromkeys(cell.method for cell in self.cells)
        return {method: max((c for c in self.cells if c.method == method), key=worth) for method in methods}

    @property
    def tuned(self) -> list[Contender]:
        """Each method with its best settings, for a comparison on the test set."""
        return [cell.contender for cell in self.best.values()]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each cell: method, settings, means and half intervals on validation examples and test set."""
        chosen = {id(cell) for cell in self.best.values()}
        return [
            {
                "method": cell.method,
                **cell.settings,
                **{f"validation_{name}": value for name, value in cell.validation._asdict().items() if name != "seeds"},
                **{f"test_{name}": value for name, value in cell.test._asdict().items()},
                "best": id(cell) in chosen,
            }
            for cell in self.cells
        ]


def validation_of(result: Result) -> float:
    """The score on validation examples at the last evaluation; NaN if it is not finite."""
    last: dict[str, Any] = next((row for row in reversed(result.rounds) if row["evaluation_seconds"] is not None), {})
    value = last.get(VALIDATION)
    return nan if value is None else float(value)


def sweep(
    experiment: Experiment,
    space: Space,
    methods: Sequence[str],
    seeds: Sequence[int] = (0,),
    search: str = "grid",
    trials: int | None = None,
    watch: Watch | None = None,
    stack: bool = True,
    tell: Tell | None = None,
    out: str | Path | None = None,
) -> Sweep:
    """Try settings of several methods on the experiment's data, model, fleet and world.

    Every method is tried under every seed with each choice of those settings that it takes. Its best choice is the one
    with the best mean score on validation examples, a fifth of each client's examples unless `split` says otherwise.

    Args:
        experiment: everything but the method and the settings to try.
        space: by a setting's name as in `--set`, the values to try, or a `Range` for searches that draw.
        methods: names of methods.
        seeds: each choice runs once per seed.
        search: `grid` (every combination), `random` or `optuna` (which needs Optuna).
        trials: how many choices each method gets, where the search is no grid.
        watch: called with name, seed and row after each round.
        stack: train runs of one kind together; False runs one after another.
        tell: called with notes.
        out: a folder for the run folders; a sweep that was stopped goes on in it.
    """
    given = experiment.model_dump()
    open_ = ("rounds", "evaluate_every")  # which rounds without a barrier count otherwise
    values = {key: value for key, value in given.items() if key not in open_ or key in experiment.model_fields_set}
    asked = Asked(tuple(methods), dict(space), tuple(seeds), search, trials, values, {})
    return run_sweep(asked, watch, stack, tell, None if out is None else Path(out))


def run_sweep(
    asked: Asked,
    watch: Watch | None = None,
    stack: bool = True,
    tell: Tell | None = None,
    out: Path | None = None,
) -> Sweep:
    """Run what is asked for, or go on with it in its folder `out`."""
    spaces = spaces_of(asked)
    best = experiment_at(asked, asked.methods[0], {}).build_goal().score.best
    if out is not None:
        _write(asked, out)
    searches = {name: search_of(asked.search, own, asked.trials, asked.seeds[0], best) for name, own in spaces.items()}
    waiting = {name: next(search) for name, search in searches.items()}
    cells: list[Cell] = []
    while waiting:
        tried = {name_of(name, point): (name, point) for name, points in waiting.items() for point in points}
        made = {}
        for name, (method, point) in tried.items():
            with named(name):
                made[name] = experiment_at(asked, method, point)
        done = compare(made, asked.seeds, watch, stack, tell, out)
        new = {one.name: Cell(*tried[one.name], one) for one in done}
        cells += [cell for name, cell in new.items() if all(cell.contender.name != own.contender.name for own in cells)]
        waiting = _answered(searches, waiting, new)
    if tell is not None:
        for note in (*budget_notes(cells), *unscored_notes(cells)):
            tell(note)
    return Sweep(tuple(cells), out)


def _answered(
    searches: dict[str, Any], waiting: dict[str, list[Point]], new: dict[str, Cell]
) -> dict[str, list[Point]]:
    """The next points of each method whose search goes on, once it knows the scores of its last."""
    following = {}
    for name, points in waiting.items():
        try:
            following[name] = searches[name].send([new[name_of(name, one)].validation.mean for one in points])
        except StopIteration:
            continue
    return following


def runs_of(asked: Asked) -> int:
    """How many runs there are, at most."""
    if asked.trials is not None:
        return len(asked.methods) * asked.trials * len(asked.seeds)
    sizes = [
        prod(len(tried) for tried in own.values() if isinstance(tried, Sequence)) for own in spaces_of(asked).values()
    ]
    return sum(sizes) * len(asked.seeds)


def spaces_of(asked: Asked) -> dict[str, dict[str, Tried]]:
    """The settings that each method is tried with: those that it takes, and those that no method has of its own."""
    if not asked.methods or not asked.seeds:
        raise BadExperiment(
            f"sweep got {len(asked.methods)} methods and {len(asked.seeds)} seeds; it needs one of each."
        )
    for key, tried in asked.space.items():
        if isinstance(tried, Sequence) and not tried:
            raise BadExperiment(f"sweep got no value for {key}; expected some, as in {key}=0.01,0.1.")
    shared = {key for key in asked.space if not any(takes(name, key) for name in asked.methods)}
    return {
        name: {key: tried for key, tried in asked.space.items() if key in shared or takes(name, key)}
        for name in asked.methods
    }


def experiment_at(asked: Asked, method: str, point: Mapping[str, Any]) -> Experiment:
    """The experiment of a method at a point, which keeps examples for validation."""
    made = experiment_of(method, asked.values, {**asked.settings, **point}, asked.methods)
    train, validation, own = made.split
    if validation:
        return made
    held = round(train * VALIDATED, 6)
    return Experiment(**{**made.model_dump(), "split": (1 - held - own, held, own)})


def name_of(method: str, point: Point) -> str:
    """A cell's name."""
    return ", ".join([method, *(spelled(key.rpartition(".")[2], value) for key, value in point.items())])


def budget_notes(cells: Sequence[Cell]) -> list[str]:
    """A note where methods were not tried with as many settings."""
    counts: dict[str, int] = {}
    for cell in cells:
        counts[cell.method] = counts.get(cell.method, 0) + 1
    if len(set(counts.values())) < 2:
        return []
    said = ", ".join(f"{name} {number}" for name, number in counts.items())
    return [f"not tuned equally: settings tried are {said}; --search random --trials N gives each method N of them"]


def unscored_notes(cells: Sequence[Cell]) -> list[str]:
    """A note where no choice of a method has a score on validation examples."""
    known = {cell.method for cell in cells if isfinite(cell.validation.mean)}
    without = list(dict.fromkeys(cell.method for cell in cells if cell.method not in known))
    if not without:
        return []
    return [f"{', '.join(without)}: no score on validation examples, so that the first choice stands for the best"]


def _write(asked: Asked, out: Path) -> None:
    """Write down what is swept; a folder that holds another sweep is refused."""
    about = {**asked._asdict(), "space": plain_space(asked.space)}
    about = json.loads(json.dumps(about))
    with writing(out):
        if (out / ABOUT).exists():
            before = read_json(out / ABOUT)
            differ = [key for key in about if before.get(key) != about[key]]
            if differ:
                raise BadExperiment(
                    f"out is '{out}', which has a sweep with {differ[0]} {plain(before.get(differ[0]))}, and now it is "
                    f"{plain(about[differ[0]])}; go on with it by `fedloom sweep --resume {out}`, or name another "
                    "folder."
                )
            return
        out.mkdir(parents=True, exist_ok=True)
        replace_file(out / ABOUT, [f"{json.dumps(about, indent=1)}\n".encode()])


def asked_in(folder: Path) -> Asked:
    """What the sweep in a folder was asked for."""
    if not (folder / ABOUT).is_file():
        raise BadExperiment(f"'{folder}' is not the folder of a sweep: it has no {ABOUT}.")
    about = read_json(folder / ABOUT)
    about = {**about, "space": read_space(about["space"])}
    lists = {name: tuple(about[name]) for name in ("methods", "seeds")}
    return Asked(**{**about, **lists})
