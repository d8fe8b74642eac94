"""The result of a finished run, read from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedloom.report.recorded import read_rows
from fedloom.runs.folder import experiment_in
from fedloom.runs.load_model import load_model
from fedloom.runs.result import Result

SPENT = ("wall_seconds", "evaluation_seconds")


def load_result(folder: str | Path, data: Any = None) -> Result:
    """The result of the run in `folder`, as `run` returned it, without `kept` and `outcome`.

    Give the `data` that `run` was given in place of the experiment's, if any: the network's size depends on them.
    """
    experiment, rows = experiment_in(Path(folder)), read_rows(Path(folder))
    seconds = sum(row[name] or 0.0 for row in rows for name in SPENT)
    return Result(experiment, load_model(folder, data), rows, seconds, Path(folder), {}, {}, experiment.build_goal())
