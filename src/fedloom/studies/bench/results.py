"""Results of `fedloom bench`: JSON, a comparison with an earlier file, and a table."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from fedloom.accel.machine import size
from fedloom.errors import BadData
from fedloom.files import replace_file
from fedloom.reading.texts import read_json
from fedloom.studies.bench.measure import Measured
from fedloom.studies.bench.workloads import WORKLOADS


@dataclass(frozen=True)
class Results:
    """The results of one call of `fedloom bench`."""

    machine: dict[str, Any]
    limits: dict[str, float]  # FLOP/s of a plain product by precision, bytes/s of a plain copy
    rows: list[Measured] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # workload and engine -> error

    def write(self, path: Path) -> None:
        """Write the results as JSON."""
        replace_file(path, [(json.dumps(asdict(self), indent=2) + "\n").encode()])

    def find(self, workload: str, engine: str) -> Measured | None:
        """The row of a workload on an engine."""
        return next((row for row in self.rows if (row.workload, row.engine) == (workload, engine)), None)


def read(path: Path) -> Results:
    """Read what `write` wrote, also by an earlier version; refuse other files."""
    expected = f"--against got {path}; expected a file that `fedloom bench --json FILE` wrote"
    try:
        found = read_json(path)
        known = {f.name for f in fields(Measured)}
        rows = [Measured(**{name: value for name, value in row.items() if name in known}) for row in found["rows"]]
        return Results(found["machine"], found["limits"], rows, found["failed"])
    except OSError as problem:
        raise BadData(f"{expected}, but it cannot be read: {problem}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise BadData(f"{expected}, but it is not one ({type(problem).__name__}: {problem})") from None


def ratios(now: Results, before: Results) -> dict[tuple[str, str], float]:
    """Time of a round divided by its time in the earlier results, for rows in both."""
    both = [(row, before.find(row.workload, row.engine)) for row in now.rows]
    return {(row.workload, row.engine): row.round_ms / old.round_ms for row, old in both if old is not None}


def of_baseline(results: Results, row: Measured) -> tuple[float, str] | None:
    """Time of a row's round divided by its baseline's, and the baseline: engine `local`, or another workload."""
    name = row.workload if row.engine != "local" else WORKLOADS[row.workload].baseline
    other = None if name is None else results.find(name, "local")
    if other is None:
        return None
    return row.round_ms / other.round_ms, "local" if row.engine != "local" else other.workload


def table(results: Results, before: Results | None) -> Table:
    """One row per workload and engine."""
    facts, best = results.machine, results.limits
    title = f"{facts['name']}, {facts['threads']} of {facts['cores']} cores, torch {facts['torch']}"
    products = ", ".join(f"{name} {_tera(value)}" for name, value in best.items() if name != "copy")
    caption = (
        f"Below: fastest and slowest cycle. A plain matrix product: {products}; a copy: {size(best['copy'])}/s. "
        "Percentages are of float32 and of the copy; operations are counted, bytes estimated, over training alone."
    )
    heads = ["ms a round", "training", "first round", "steps/s", "FLOP/s", "memory/s", "peak", "of baseline"]
    shown = Table(Column("workload", no_wrap=True), title=title, caption=caption, title_justify="left")
    for head in heads if before is None else [*heads, "before"]:
        shown.add_column(head, justify="right")
    earlier = {} if before is None else ratios(results, before)
    for row in results.rows:
        baseline = of_baseline(results, row)
        cells = [
            row.workload if row.engine == "local" else f"{row.workload} {row.engine}",
            f"{_ms(row.round_ms)}\n{_ms(row.fastest_ms)}-{_ms(row.slowest_ms)}",
            _ms(row.training_ms),
            _ms(row.first_ms),
            f"{row.steps_per_second:,.0f}",
            f"{_tera(row.flops_per_second)}\n{row.flops_per_second / best['float32']:.0%}",
            f"{size(row.bytes_per_second)}\n{row.bytes_per_second / best['copy']:.0%}",
            "-" if row.peak_bytes is None else size(row.peak_bytes),
            "" if baseline is None else f"× {_ratio(baseline[0])}\n{baseline[1]}",
        ]
        if before is not None:
            ratio = earlier.get((row.workload, row.engine))
            cells.append("-" if ratio is None else f"× {_ratio(ratio)}")
        shown.add_row(*(Text(cell) for cell in cells))
    return shown


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _ratio(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}"


def _tera(value: float) -> str:
    return f"{value / 1e12:.1f} T" if value >= 1e12 else f"{value / 1e9:.0f} G"
