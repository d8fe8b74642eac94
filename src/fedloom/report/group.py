"""Groups of runs: one experiment under several seeds, drawn in one colour in all charts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.errors import BadExperiment
from fedloom.evaluate.wording import label_of
from fedloom.report.about import Scores
from fedloom.report.recorded import ABOUT, Recorded, read_run

# Okabe and Ito's colours, which the colour-blind can tell apart; those that are faint on white come late or not at all
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#7F7F7F", "#8C6D31")
DASHES = ("solid", "dash", "dot", "dashdot")  # for the ninth group and later, which share colours


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed."""

    label: str
    place: int
    runs: tuple[Recorded, ...]

    @property
    def scores(self) -> Scores:
        """The metrics of its runs."""
        return self.runs[0].scores

    @property
    def colour(self) -> str:
        """Its colour in all charts."""
        return COLOURS[self.place % len(COLOURS)]

    @property
    def dash(self) -> str:
        """The dash of its lines."""
        return DASHES[self.place // len(COLOURS) % len(DASHES)]


def read_groups(folders: list[Path]) -> tuple[list[Group], list[str]]:
    """The runs in these folders, grouped in the order given, and notes."""
    if not folders:
        raise BadExperiment("report got no run folder; name at least one, such as runs/fedavg-digits-1.")
    notes: list[str] = []
    found: dict[str, dict[int, Recorded]] = {}
    for each in dict.fromkeys(one for folder in folders for one in runs_in(Path(folder).absolute())):
        run = read_run(each)
        same = found.setdefault(json.dumps(run.experiment | {"seed": None}, sort_keys=True), {})
        seed = run.experiment["seed"]
        if seed in same:
            notes.append(f"{run.name} is left out: it is the same experiment and seed as {same[seed].name}.")
        same.setdefault(seed, run)
        if not run.rows:
            notes.append(f"{run.name} has no rounds yet.")
        elif run.ended is None and len(run.rows) < run.experiment["rounds"]:
            notes.append(f"{run.name} is not over: {len(run.rows)} of {run.experiment['rounds']} rounds so far.")
        elif run.ended not in (None, "finished"):
            notes.append(f"{run.name} {run.ended}")
        if run.diverged:
            notes.append(f"{run.name}: the score of its last evaluation is not a finite number.")
    check_alike([run for runs in found.values() for run in runs.values()])
    every = [tuple(runs.values()) for runs in found.values()]
    labels = labels_of([runs[0].experiment for runs in every])
    return [Group(label, place, runs) for place, (label, runs) in enumerate(zip(labels, every))], notes


def runs_in(folder: Path) -> list[Path]:
    """The run folder itself, or the run folders in a study's folder, by name."""
    if (folder / ABOUT).exists() or not folder.is_dir():
        return [folder]
    return sorted(one for one in folder.iterdir() if (one / ABOUT).exists()) or [folder]


def check_alike(runs: list[Recorded]) -> None:
    """Refuse runs with different scores: they share no axis, no target and no order."""
    first = runs[0]
    for run in runs:
        if run.scores.score[:2] != first.scores.score[:2]:
            ours, theirs = (f"{label_of(own)} ({own.best} is better)" for own in (first.scores.score, run.scores.score))
            raise BadExperiment(
                f"runs {first.name} and {run.name} have different scores, {ours} and {theirs}; make a report of each "
                "kind."
            )


def labels_of(experiments: list[dict[str, Any]]) -> list[str]:
    """Each group's method, and the settings in which groups of one method differ."""
    flats = [flat(experiment) for experiment in experiments]
    labels = []
    for own in flats:
        rivals = [other for other in flats if other["method"] == own["method"]]
        differ = [
            key for key in own if key not in ("seed", "method") and any(other.get(key) != own[key] for other in rivals)
        ]
        parts = [f"{key.removeprefix('method.').removeprefix('training.')}={plain(own[key])}" for key in differ]
        lacks = {key for other in rivals for key in other} - own.keys()
        parts += [f"no {key}" for key in sorted(lacks)] if not parts else []
        labels.append(", ".join([str(own["method"]), *parts]))
    return labels


def flat(experiment: dict[str, Any]) -> dict[str, Any]:
    """`section.setting` -> value; a section with a name of its own is also `section` -> name."""
    found: dict[str, Any] = {}
    for key, value in experiment.items():
        if isinstance(value, dict) and set(value) == {"name", "settings"} and isinstance(value["settings"], dict):
            found[key] = value["name"]
            found |= {f"{key}.{name}": one for name, one in value["settings"].items()}
        elif isinstance(value, dict):
            found |= {f"{key}.{name}": one for name, one in value.items()}
        else:
            found[key] = value
    return found


def plain(value: Any) -> str:
    """A setting as typed on a command line."""
    return value if isinstance(value, str) else json.dumps(value)
