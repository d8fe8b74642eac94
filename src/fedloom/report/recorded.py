"""Recorded runs, read from run folders; a run that is not over can be read too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.core.flight import IN_FLIGHT
from fedloom.errors import BadData, BadExperiment
from fedloom.reading.tables import numbers_or_objects, read_parquet
from fedloom.reading.tensors import read_tensors
from fedloom.reading.texts import read_json
from fedloom.report.about import Scores, names_in, scores_in

Numbers = NDArray[Any]
KNOWN = (  # columns that a row has, with None where a run did not write them
    *("score", "accuracy", "top5", "per_class", "loss", "personal_score", "personal_accuracy", "training_loss"),
    *("clients", "arrived", "rejected", "virtual_seconds", "joules", "wall_seconds", "evaluation_seconds"),
)
ABOUT = "experiment.json"
FINISHED, STOPPED = "finished", "stopped: "  # how the log of a run ends


@dataclass(frozen=True)
class Recorded:
    """The contents of a run folder."""

    name: str  # of the folder
    about: dict[str, Any]  # experiment.json
    rows: list[dict[str, Any]]  # one a round
    clients: dict[str, Numbers]  # columns of clients.parquet: tasks that have ended
    kept: dict[str, Numbers]  # larger tensors
    ended: str | None  # how it ended, in words; None: it is not over, or was killed
    in_flight: dict[str, Numbers] = field(default_factory=dict)  # the other rows of clients.parquet

    @property
    def experiment(self) -> dict[str, Any]:
        """The experiment's settings."""
        return dict(self.about["experiment"])

    @property
    def fleet(self) -> int:
        """How many clients the data were dealt to: all that the data have, where the experiment asks for more."""
        return int(self.about.get("clients") or self.experiment["clients"])

    @property
    def scored(self) -> list[dict[str, Any]]:
        """The rows of rounds that have a score."""
        return [row for row in self.rows if row["score"] is not None]

    @property
    def diverged(self) -> bool:
        """Whether the score of the last evaluation is not a finite number."""
        evaluated = [row for row in self.rows if row["evaluation_seconds"] is not None]
        return bool(evaluated) and evaluated[-1]["score"] is None

    @property
    def scores(self) -> Scores:
        """Its metrics."""
        return scores_in(self.about)

    def names(self, key: str) -> list[str]:
        """The names of clients or classes by their numbers, if they have any."""
        return names_in(self.about, key)


def read_run(folder: Path) -> Recorded:
    """Everything that a run has written so far."""
    about, ended = read_about(folder), read_end(folder)
    kept = folder / "kept.safetensors"
    try:
        tensors = {n: v.numpy() for n, v in read_tensors(kept).items()} if kept.exists() else {}
    except BadData as problem:
        raise BadData(f"{problem} Delete it to report without what is in it.") from problem
    clients = read_table(folder / "clients.parquet")
    columns = {} if clients is None else {n: numbers_or_objects(clients[n]) for n in clients.column_names}
    flying = columns["fate"] == IN_FLIGHT if "fate" in columns else np.zeros(0, bool)
    still = {name: values[flying] for name, values in columns.items()} if flying.any() else {}
    columns = {name: values[~flying] for name, values in columns.items()} if flying.any() else columns
    return Recorded(folder.absolute().name, about, read_rows(folder), columns, tensors, ended, still)


def read_about(folder: Path) -> dict[str, Any]:
    """A run folder's experiment.json, checked."""
    file = folder / ABOUT
    try:
        about = read_json(file)
        experiment = about["experiment"]
        missing = [key for key in ("method", "data", "rounds", "seed", "clients") if key not in experiment]
        if missing or not all(isinstance(experiment[key], dict) for key in ("method", "data")):
            raise ValueError(f"no {missing[0]}" if missing else "method and data are not objects")
        if not all(isinstance(experiment[key], int) for key in ("rounds", "seed", "clients")):
            raise ValueError("rounds, seed and clients are not numbers")
        if not isinstance(about.get("clients", 0), int):
            raise ValueError("the number of clients is not one")
        if not all(isinstance(experiment[key].get("name"), str) for key in ("method", "data")):
            raise ValueError("method and data have no name")
        scores_in(about)
        return dict(about)
    except (FileNotFoundError, NotADirectoryError):
        raise BadExperiment(
            f"'{folder}' is not a run folder: it has no experiment.json; name the folder that a run wrote (--out)."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise BadData(f"'{file}' cannot be read ({problem}); it was written when the run began.") from problem


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """One row per round; empty before the run has written any."""
    table = read_table(folder / "rounds.parquet")
    if table is None:
        return []
    known: Mapping[str, None] = dict.fromkeys(KNOWN)
    old = "score" not in table.column_names  # of a run from before there were other scores than accuracy
    needed = ("round", "accuracy" if old else "score", "bytes_up", "bytes_down")
    lacking = [name for name in needed if name not in table.column_names]
    if lacking:
        raise BadData(f"'{folder / 'rounds.parquet'}' has no column {lacking[0]}; it is not the table of a run.")
    rows = [{**known, **{name: _number(value) for name, value in row.items()}} for row in table.to_pylist()]
    if old:
        rows = [{**row, "score": row["accuracy"], "personal_score": row.get("personal_accuracy")} for row in rows]
    return rows


def read_table(file: Path) -> Any:
    """The table of a Parquet file; None if there is no such file."""
    if not file.exists():
        return None
    try:
        return read_parquet(file, lists=True)
    except BadData as problem:
        raise BadData(f"{problem}; the run writes it anew when it is resumed.") from problem


def read_end(folder: Path) -> str | None:
    """How the run ended, by the last line of its log; None if it is not over."""
    try:
        with (folder / "log.txt").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 4096))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return None
    words = lines[-1].partition(" INFO ")[2] if lines else ""
    return words if words == FINISHED or words.startswith(STOPPED) else None


def _number(value: Any) -> Any:
    """A number of a row; None for NaN, which stands for "not measured"."""
    return None if isinstance(value, float) and math.isnan(value) else value


def as_floats(values: Any) -> NDArray[np.float64]:
    """Numbers with NaN in place of None."""
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
