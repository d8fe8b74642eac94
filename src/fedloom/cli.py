"""The command `fedloom`."""

from __future__ import annotations

import json
import logging
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

from fedloom.errors import BadExperiment, FedloomError, RunStopped

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)
errors = Console(stderr=True)


@app.callback()
def about() -> None:
    """Federated learning on weak, uneven, unreliable fleets.

    Start with `fedloom run fedavg`, then `fedloom list methods`.
    """


@app.command("run")
def run_command(
    method: Annotated[str, typer.Argument(help="a name from `fedloom list methods`, or my_file.py:my_method")],
    data: Annotated[
        str, typer.Option(help="a name from `fedloom list data`, or a .npz, .csv or .parquet file")
    ] = "digits",
    partition: Annotated[
        str, typer.Option(help="how data are dealt to clients: `fedloom list partitions`")
    ] = "dirichlet",
    clients: Annotated[int, typer.Option(help="clients in the fleet")] = 100,
    model: Annotated[str, typer.Option(help="a name from `fedloom list models`, or my_file.py:my_network")] = "mlp",
    rounds: Annotated[int, typer.Option(help="how many rounds")] = 50,
    seed: Annotated[int, typer.Option(help="the same seed gives the same run")] = 0,
    engine: Annotated[str, typer.Option(help="local: the cohort at once; loop: one client after another")] = "local",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")] = "auto",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="any other setting, such as rate=0.05, epochs=5, method.mu=0.1,"
            " partition.alpha=0.5, per_round=20; repeat as needed",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="the run folder; a new one under runs/ if left out")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object at the end and nothing else")] = False,
) -> None:
    """Train a fleet with METHOD and write a run folder.

    For example `fedloom run scaffold --data mnist --clients 100 --set rate=0.05 --set epochs=2`.
    """
    from fedloom.experiment import Experiment, with_settings
    from fedloom.run import run
    from fedloom.show import progress, summary_table

    values: dict[str, Any] = {
        "method": method, "data": data, "partition": partition, "clients": clients, "model": model, "rounds": rounds,
        "seed": seed, "engine": engine, "device": device,
    }  # fmt: skip
    experiment = Experiment(**with_settings(values, _pairs(set_ or [])))
    console = errors if as_json else Console()
    folder = out or _new_folder(f"{Path(method.partition('.py:')[0]).name}-{Path(data).stem}")
    with progress(console, method, rounds) as watch:
        result = run(experiment, out=folder, watch=watch)
    if as_json:
        typer.echo(json.dumps(result.summary()))
    else:
        console.print(summary_table(result))


class Kind(StrEnum):
    """What can be listed."""

    methods = "methods"
    data = "data"
    models = "models"
    partitions = "partitions"
    parts = "parts"


@app.command("list")
def list_command(
    kind: Annotated[Kind, typer.Argument(help="what to list")],
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Show the names that `fedloom run` understands, with their settings."""
    from fedloom.catalogue import catalogue

    rows = catalogue(kind.value)
    if as_json:
        typer.echo(json.dumps([row._asdict() for row in rows]))
        return
    table = Table("name", "settings", "what it is", title=f"fedloom {kind.value}", title_justify="left")
    for row in rows:
        table.add_row(row.name, row.settings, row.about)
    Console().print(table)


def _pairs(texts: list[str]) -> dict[str, Any]:
    """`--set` arguments as a dictionary."""
    from fedloom.settings import parse_value

    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise BadExperiment(f"--set got '{text}'; expected KEY=VALUE, such as rate=0.05.")
        pairs[key.strip()] = parse_value(value.strip())
    return pairs


def _new_folder(stem: str) -> Path:
    """The first free `runs/STEM-NUMBER`."""
    number = 1
    while (folder := Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return folder


def main() -> None:
    """Run the command; errors become one line and an exit code: 2 bad input, 3 a run that stopped, 130 Ctrl-C."""
    shown = RichHandler(logging.WARNING, console=errors, show_path=False, show_time=False)
    logging.basicConfig(format="%(message)s", handlers=[shown])
    try:
        app()
    except FedloomError as problem:
        errors.print(f"[bold red]error:[/] {problem}", highlight=False, soft_wrap=True)
        raise SystemExit(3 if isinstance(problem, RunStopped) else 2) from None
    except KeyboardInterrupt:
        errors.print("interrupted; the rounds that were finished are in the run folder")
        raise SystemExit(130) from None
