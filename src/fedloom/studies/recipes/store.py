"""Storage of runs: two small files per run, named by a hash of its experiment, and one Parquet file per recipe."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from io import BytesIO
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from fedloom.errors import BadData
from fedloom.files import replace_file
from fedloom.reading.tables import read_parquet
from fedloom.reading.texts import read_json
from fedloom.runs.experiment import Experiment
from fedloom.runs.parquet import columns_of, table_bytes, table_rows
from fedloom.runs.result import Result
from fedloom.studies.recipes.measure import Run, Runs

PLACES = ("device", "chunk", "memory")  # settings that decide where an experiment runs, not its results
SMALL = 10_000  # numbers of a table that is kept at most
FORMAT = 1  # of a recipe's Parquet file
ABOUT = b"fedloom reproduce"


def key_of(experiment: Experiment) -> str:
    """A run's name in the store: a hash of everything that decides its numbers, and of fedloom's version."""
    facts = {k: v for k, v in experiment.model_dump(mode="json").items() if k not in PLACES}
    return sha256(json.dumps([_version(), facts], sort_keys=True).encode()).hexdigest()[:20]


@cache
def _version() -> str:
    return version("fedloom")  # cached, since it is read from the disk


class Kept(NamedTuple):
    """A run from the store."""

    run: Run
    facts: dict[str, Any]  # seconds, machine, numbers of examples


class Store:
    """The runs of a folder. A run exists once its .json does, which is written last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "runs"

    def has(self, experiment: Experiment) -> bool:
        """Whether the store has this experiment's run."""
        return (self.folder / f"{key_of(experiment)}.json").is_file()

    def save(self, result: Result, facts: dict[str, Any]) -> None:
        """Store a finished run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        stem = self.folder / key_of(result.experiment)
        tables = {name: _plain(value.tolist()) for name, value in result.kept.items() if value.numel() <= SMALL}
        about = {"experiment": result.experiment.model_dump(mode="json"), "seconds": result.wall_seconds, **facts}
        replace_file(stem.with_suffix(".parquet"), [table_bytes(result.rounds)])
        replace_file(stem.with_suffix(".json"), [json.dumps({**about, "kept": tables}).encode()])

    def load(self, experiment: Experiment) -> Kept | None:
        """The experiment's run, or None."""
        stem = self.folder / key_of(experiment)
        try:
            facts = read_json(stem.with_suffix(".json"))
            return Kept(Run(table_rows(stem.with_suffix(".parquet")), facts.pop("kept")), facts)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, pa.ArrowException) as problem:
            raise BadData(
                f"the run '{stem}' cannot be read ({problem}); remove both its files to run it anew"
            ) from None


def _plain(value: Any) -> Any:
    """Nested lists for JSON, which has no NaN."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value


class Reproduced(NamedTuple):
    """The contents of a recipe's Parquet file: what was run and how, and all rows."""

    about: dict[str, Any]
    runs: Runs


def write_table(file: Path, about: dict[str, Any], kept: dict[tuple[str, int], Kept]) -> None:
    """Write a recipe's Parquet file: one row per label, seed and round; classes of the last evaluation only."""
    rows: list[dict[str, Any]] = []
    for (label, seed), one in kept.items():
        last = max((n for n, row in enumerate(one.run.rows) if row["per_class"] is not None), default=-1)
        for n, row in enumerate(one.run.rows):
            classes = row["per_class"] if n == last else None
            rows.append({"recipe": about["recipe"], "label": label, "seed": seed, **row, "per_class": classes})
    texts: dict[str, pa.DataType] = {"recipe": pa.string(), "label": pa.string(), "seed": pa.int64()}
    columns = [(name, texts.get(name, kind)) for name, kind in columns_of(rows)]
    tables = [[label, seed, one.run.kept] for (label, seed), one in kept.items() if one.run.kept]
    facts = json.dumps({"format": FORMAT, **about, "kept": tables}).encode()
    schema = pa.schema(columns, {ABOUT: facts})
    pq.write_table(pa.Table.from_pylist(rows, schema), written := BytesIO(), compression="zstd")
    replace_file(file, [written.getvalue()])


def read_table(file: Path) -> Reproduced:
    """Read a recipe's Parquet file."""
    try:
        table = read_parquet(file, lists=True)
        about = json.loads(table.schema.metadata[ABOUT])
        rows = table.to_pylist()
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as problem:
        raise BadData(f"'{file}' is no Parquet of `fedloom reproduce` ({type(problem).__name__}: {problem})") from None
    if about.get("format") != FORMAT:
        raise BadData(f"'{file}' has format {about.get('format')}; this fedloom reads {FORMAT}")
    rounds: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        rounds.setdefault((row.pop("label"), row.pop("seed")), []).append(row)
    tables = {(label, seed): kept for label, seed, kept in about.pop("kept")}
    return Reproduced(about, {at: Run(own, tables.get(at, {})) for at, own in rounds.items()})


def tables_in(folder: Path) -> Sequence[Path]:
    """The recipes' Parquet files in a folder."""
    return sorted(folder.glob("*.parquet"))
