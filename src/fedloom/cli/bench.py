"""The command `fedloom bench`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.status import Status
from rich.table import Column, Table

from fedloom.cli.options import DeviceOption
from fedloom.errors import BadExperiment, unknown

ENGINES = ("local", "loop")
WIDTH = 120  # characters of a table that is not on a terminal


def bench_command(
    workloads: Annotated[
        list[str] | None, typer.Argument(help="names from --list, or all; W1 W2 W3 on a CPU and all on a GPU")
    ] = None,
    device: DeviceOption = "auto",
    engine: Annotated[str, typer.Option(help="local, or local,loop to compare them in one run")] = "local",
    cycles: Annotated[int, typer.Option(min=1, help="repetitions, of which the median counts")] = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="for a workload, roughly; one cycle is always played")] = 5.0,
    quick: Annotated[bool, typer.Option("--quick", help="3 cycles and 2 seconds for a workload")] = False,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads, in place of those a run would choose")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write the figures here")] = None,
    against: Annotated[
        Path | None, typer.Option(metavar="FILE", help="compare with figures written earlier, also by an older version")
    ] = None,
    fail_above: Annotated[
        float | None,
        typer.Option(help="exit code 1 if a round takes more than this many times as long as in --against"),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="show the workloads and end")] = False,
) -> None:
    """Measure rounds on synthetic data, and compare them with the device's limits.

    For example `fedloom bench W1 W2 --json now.json`, later `fedloom bench W1 W2 --against now.json --fail-above 1.2`.
    """
    import torch

    from fedloom.accel.machine import device_of
    from fedloom.studies.bench.limits import limits, machine
    from fedloom.studies.bench.measure import measure
    from fedloom.studies.bench.results import Results, ratios, read, table
    from fedloom.studies.bench.workloads import WORKLOADS, chosen

    notes, console = Console(stderr=True, highlight=False), Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    if list_:
        shown = Table(
            Column("workload", no_wrap=True), "what it is", "baseline", title="workloads", title_justify="left"
        )
        for name, workload in WORKLOADS.items():
            shown.add_row(name, workload.about, workload.baseline or "")
        console.print(shown)
        return
    place = device_of(device)
    names, engines = chosen(workloads or [], place.type), [one.strip() for one in engine.split(",")]
    for one in engines:
        if one not in ENGINES:
            raise BadExperiment(unknown("engine", one, ENGINES))
    if fail_above is not None and against is None:
        raise BadExperiment("fail_above compares with figures written earlier, and there are none; add --against FILE.")
    before = None if against is None else read(against)
    if quick:
        cycles, seconds = min(cycles, 3), min(seconds, 2.0)
    if threads is not None:
        torch.set_num_threads(threads)
    with notes.status("the device's limits"):
        results = Results(machine(place), limits(place))
    for name in names:
        for one in engines:
            title = f"{name} {one}"
            try:
                with notes.status(title, refresh_per_second=1) as status:  # each refresh takes time from the run
                    row = measure(
                        name,
                        WORKLOADS[name],
                        one,
                        str(place),
                        cycles,
                        seconds,
                        tell=partial(_update, status, title),
                        own_threads=threads is None,
                    )
                results.rows.append(row)
                notes.print(f"{title}: {row.round_ms:.2f} ms a round", markup=False)
            except Exception as problem:  # noqa: BLE001 one workload that fails, for want of memory say, leaves the others
                results.failed[title] = f"{type(problem).__name__}: {problem}"
                notes.print(f"{title} failed: {results.failed[title]}", style="red", markup=False)
            if json_file is not None:
                results.write(json_file)
    if results.rows:
        console.print(table(results, before))
    slower = {} if before is None or fail_above is None else ratios(results, before)
    too_slow = [f"{name} {one} × {ratio:.2f}" for (name, one), ratio in slower.items() if ratio > (fail_above or 0)]
    if too_slow:
        notes.print(
            f"slower than {fail_above:g} times the earlier time: {', '.join(too_slow)}", style="red", markup=False
        )
    if results.failed or too_slow:
        raise typer.Exit(1)


def _update(status: Status, title: str, state: str) -> None:
    """Show the state of a workload on a terminal."""
    status.update(f"{title}: {state}")
