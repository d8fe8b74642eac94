"""The command `fedloom`."""

from __future__ import annotations

import json
import logging
import platform
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fedloom.cli.bench import bench_command
from fedloom.cli.compare import compare_command, plan_command
from fedloom.cli.deploy_group import deploy_app
from fedloom.cli.experiment_options import ExperimentOptions, experiment_options
from fedloom.cli.export import export_command
from fedloom.cli.flower import gate_command, trial_command
from fedloom.cli.neurons import neurons_command
from fedloom.cli.options import (
    WARNINGS,
    EngineOption,
    EveryOption,
    JsonOption,
    KeepOption,
    MlflowOption,
    ResumeOption,
    TensorboardOption,
    WandbOption,
    checkpoints_of,
    new_folder_for,
    note_printer,
    print_error,
    print_json,
    silence_other_ranks,
)
from fedloom.cli.replay import replay_command
from fedloom.cli.report import report_command, watch_command
from fedloom.cli.reproduce import reproduce_command
from fedloom.cli.rollback import rollback_command
from fedloom.cli.states import states_command
from fedloom.cli.supervise import supervise_command
from fedloom.cli.sweep import sweep_command
from fedloom.errors import FedloomError, RunStopped

if TYPE_CHECKING:
    from fedloom.runs.experiment import Experiment

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)
errors = Console(stderr=True)


def print_version(asked: bool) -> None:
    """Print the versions of fedloom and of what it stands on, and end."""
    if asked:
        from importlib.metadata import version

        typer.echo(f"fedloom {version('fedloom')} (torch {version('torch')}, Python {platform.python_version()})")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="print the version and end")
    ] = False,
) -> None:
    """Federated learning on weak, uneven, unreliable fleets.

    Start with `fedloom run fedavg`, then `fedloom list methods`.
    """


@app.command("run")
@experiment_options()
def run_command(
    context: typer.Context,
    method: Annotated[
        str,
        typer.Argument(help="a name from `fedloom list methods`, or my_file.py:my_method; a run folder to --resume"),
    ],
    shared: ExperimentOptions,
    engine: EngineOption = "local",
    out: Annotated[Path | None, typer.Option(help="the run folder; a new one under runs/ if left out")] = None,
    resume: ResumeOption = False,
    checkpoint_every: EveryOption = "30s",
    keep: KeepOption = 2,
    tensorboard: TensorboardOption = None,
    mlflow: MlflowOption = None,
    wandb: WandbOption = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="say how and why the run would train as it does, and end; trains nothing")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a fleet with METHOD and write a run folder.

    For example `fedloom run scaffold --data mnist --clients 100 --set rate=0.05 --set epochs=2`. A run that was stopped
    goes on with `fedloom run --resume DIR`.

    Exit codes: 0 finished, 2 wrong input, 3 stopped by a fault (what was saved is kept), 130 stopped by Ctrl-C.
    """
    from fedloom.cli.show import progress, summary_table
    from fedloom.report.trackers import trackers
    from fedloom.runs.play import run

    if resume and out is None:
        out = Path(method)  # METHOD is the folder, which has all settings
        experiment = shared.resumed(context, out, engine=engine)
    else:
        experiment = shared.experiment(method=method, engine=engine)
    if explain:
        print_explanation(experiment, as_json)
        return
    console, name = errors if as_json else Console(), experiment.method.name
    folder = out or new_folder_for(experiment)
    when = checkpoints_of(checkpoint_every, keep)
    try:
        with progress(console, name, experiment.rounds, experiment.build_goal().score) as bar:
            result = run(
                experiment, out=folder, resume=resume, checkpoints=when, watch=bar,
                callbacks=trackers(tensorboard, mlflow, wandb), tell=note_printer(console),
            )  # fmt: skip
    except KeyboardInterrupt:
        errors.print(
            f"interrupted; the rounds that were finished are in {folder}, go on with `fedloom run --resume {folder}`",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
        raise typer.Exit(130) from None
    if as_json:
        print_json(result.summary())
    else:
        console.print(summary_table(result))


def print_explanation(experiment: Experiment, as_json: bool) -> None:
    """What a run of the experiment would do, as tables or as JSON."""
    from fedloom.cli.show import explanation_tables
    from fedloom.runs.build import prepare
    from fedloom.runs.explain import explain

    sections = explain(experiment, prepare(experiment))
    if as_json:
        print_json({title: dict(lines) for title, lines in sections})
        return
    for table in explanation_tables(sections):
        Console().print(table)


app.command("compare")(compare_command)
app.command("plan")(plan_command)
app.command("sweep")(sweep_command)
app.command("bench")(bench_command)
app.command("neurons")(neurons_command)
app.command("reproduce")(reproduce_command)
app.add_typer(deploy_app, name="deploy")
app.command("trial")(trial_command)
app.command("gate")(gate_command)
app.command("replay")(replay_command)
app.command("supervise")(supervise_command)
app.command("report")(report_command)
app.command("export")(export_command)
app.command("watch")(watch_command)
app.command("rollback")(rollback_command)
app.command("states")(states_command)


class Kind(StrEnum):
    """What can be listed."""

    methods = "methods"
    data = "data"
    models = "models"
    adapters = "adapters"
    goals = "goals"
    augment = "augment"
    partitions = "partitions"
    fleets = "fleets"
    channels = "channels"
    paces = "paces"
    staleness = "staleness"
    aggregates = "aggregates"
    checks = "checks"
    attacks = "attacks"
    parts = "parts"
    settings = "settings"
    training = "training"
    server = "server"
    world = "world"
    codec = "codec"
    until = "until"


SETTINGS = (Kind.settings, Kind.training, Kind.server, Kind.world, Kind.codec, Kind.until)


@app.command("list")
def list_command(
    kind: Annotated[Kind, typer.Argument(help="what to list")],
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Show the names that `fedloom run` understands, with their settings; `settings` shows all that `--set` takes."""
    from fedloom.cli.catalogue import catalogue
    from fedloom.cli.setting_rows import SettingRow, setting_rows

    of_settings = kind in SETTINGS
    settings, named = (setting_rows(kind.value), []) if of_settings else ([], catalogue(kind.value))
    if as_json:
        typer.echo(json.dumps([*(row._asdict() for row in settings), *(row.record() for row in named)]))
        return
    heads = (*SettingRow._fields[1:-1], "what it is") if of_settings else ("settings", "what it is")
    table = Table(Column("name", no_wrap=True), *heads, title=f"fedloom {kind.value}", title_justify="left")
    for cells in (*settings, *((row.name, row.settings, row.told) for row in named)):
        table.add_row(*(Text(text) for text in cells))
    Console().print(table)


def main() -> None:
    """Run the command; errors become one line and an exit code: 2 bad input, 3 a run that stopped, 130 Ctrl-C."""
    silence_other_ranks(errors)
    WARNINGS.console = errors
    logging.basicConfig(format="%(message)s", handlers=[WARNINGS])
    try:
        app()
    except FedloomError as problem:
        print_error(errors, problem)
        raise SystemExit(3 if isinstance(problem, RunStopped) else 2) from None
