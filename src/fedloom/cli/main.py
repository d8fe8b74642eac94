"""The command `fedloom`."""

from __future__ import annotations

import json
import logging
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Column, Table
from rich.text import Text

from fedloom.cli.bench import bench_command
from fedloom.cli.deploy_group import deploy_app
from fedloom.cli.experiment_options import ExperimentOptions, experiment_options
from fedloom.cli.export import export_command
from fedloom.cli.flower import gate_command, trial_command
from fedloom.cli.neurons import neurons_command
from fedloom.cli.options import (
    EngineOption,
    EveryOption,
    JsonOption,
    KeepOption,
    MlflowOption,
    ResumeOption,
    StackOption,
    TensorboardOption,
    TryOption,
    checkpoints_of,
    choices_of,
    new_folder_for,
    note_printer,
    print_error,
    print_json,
    runs_progress,
    silence_other_ranks,
)
from fedloom.cli.replay import replay_command
from fedloom.cli.report import report_command, watch_command
from fedloom.cli.reproduce import reproduce_command
from fedloom.cli.rollback import rollback_command
from fedloom.cli.states import states_command
from fedloom.cli.supervise import supervise_command
from fedloom.errors import FedloomError, RunStopped

if TYPE_CHECKING:
    from fedloom.runs.experiment import Experiment

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
    from fedloom.report.trackers import tracked
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
        with (
            progress(console, name, experiment.rounds, experiment.build_goal().score) as bar,
            tracked(experiment, folder, bar, tensorboard, mlflow) as watch,
        ):
            result = run(
                experiment, out=folder, resume=resume, checkpoints=when, watch=watch,
                tell=note_printer(console),
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


@app.command("compare")
@experiment_options()
def compare_command(
    methods: Annotated[list[str], typer.Argument(help="names from `fedloom list methods`; the first is the reference")],
    *,
    target: Annotated[float | None, typer.Option(help="score to reach, such as an accuracy: what did it cost?")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="how many seeds, from --seed on")] = 3,
    shared: ExperimentOptions,
    stack: StackOption = True,
    as_json: JsonOption = False,
) -> None:
    """Run METHODS on the same data, fleet, world and seeds, and print one table.

    For example `fedloom compare fedavg fedcs oort --fleet table4 --target 0.8`. A setting that only some methods
    have is given to those that have it.
    """
    from fedloom.cli.show import comparison_rows, comparison_table, progress
    from fedloom.evaluate.judge import check_target
    from fedloom.studies.compare import compare
    from fedloom.studies.forms import experiment_of

    pairs = shared.settings
    experiments = {name: experiment_of(name, shared.values, pairs, methods) for name in methods}
    score = next(iter(experiments.values())).build_goal().score
    if target is not None:
        check_target(score, target)
    console = errors if as_json else Console()
    total = seeds * sum(experiment.rounds for experiment in experiments.values())
    with runs_progress(console, "compare", total, partial(progress, score=score)) as each:
        contenders = compare(experiments, range(shared.seed, shared.seed + seeds), each, stack, note_printer(console))
    if as_json:
        facts = {"target": target, "score_name": score.name, "lower_is_better": score.best == "low"}
        print_json({**facts, "methods": comparison_rows(contenders, target)})
    else:
        console.print(comparison_table(contenders, target))


@app.command("plan")
@experiment_options()
def plan_command(
    fleet: Annotated[str, typer.Option(help="your devices: a .csv or .parquet, or a name from `fedloom list fleets`")],
    target: Annotated[float, typer.Option(help="score to reach, such as an accuracy of 0.8")],
    *,
    methods: Annotated[str, typer.Option(help="candidates, joined by commas; a choice of ours if left out")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="how many seeds, from --seed on")] = 1,
    shared: ExperimentOptions,
    try_: TryOption = None,
    chart: Annotated[
        Path | None, typer.Option(help="draw the trade-off into this .svg, .png or .pdf (needs matplotlib)")
    ] = None,
    stack: StackOption = True,
    as_json: JsonOption = False,
) -> None:
    """Say which method, codec and settings reach a target on your fleet soonest, and which cheapest.

    For example `fedloom plan --fleet my_devices.csv --model mlp --target 0.8 --try method.budget=0.4,0.6`.
    """
    from fedloom.cli.show import plan_rows, plan_table, progress
    from fedloom.studies.chart import check_chart, draw_chart, text_chart
    from fedloom.studies.plan import CANDIDATES, CODECS, candidates, plan

    if chart is not None:
        check_chart(chart)
    experiment = shared.experiment(fleet=fleet)
    chosen = [name.strip() for name in methods.split(",")] if methods else list(CANDIDATES)
    choices = choices_of(try_ or [])
    console = errors if as_json else Console()
    every = range(shared.seed, shared.seed + seeds)
    shown = partial(progress, score=experiment.build_goal().score)
    total = seeds * sum(one.rounds for one in candidates(experiment, chosen, CODECS, choices).values())
    tell = note_printer(console)
    with runs_progress(console, "plan", total, shown) as each:
        found = plan(experiment, target, chosen, every, CODECS, choices, each, stack, tell)
    if chart is not None:
        draw_chart(found, chart)
    if as_json:
        facts = {
            "target": target,
            "score_name": found.score.name,
            "lower_is_better": found.score.best == "low",
            "options": plan_rows(found),
        }
        print_json({**facts, "missed": [c.name for c in found.missed]})
    else:
        console.print(plan_table(found))
        console.print(Text(text_chart(found)))


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


@app.command("list")
def list_command(
    kind: Annotated[Kind, typer.Argument(help="what to list")],
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Show the names that `fedloom run` understands, with their settings."""
    from fedloom.cli.catalogue import catalogue

    rows = catalogue(kind.value)
    if as_json:
        typer.echo(json.dumps([row.record() for row in rows]))
        return
    table = Table(
        Column("name", no_wrap=True), "settings", "what it is", title=f"fedloom {kind.value}", title_justify="left"
    )
    for row in rows:
        table.add_row(*(Text(text) for text in (row.name, row.settings, row.told)))
    Console().print(table)


def main() -> None:
    """Run the command; errors become one line and an exit code: 2 bad input, 3 a run that stopped, 130 Ctrl-C."""
    silence_other_ranks(errors)
    shown = RichHandler(logging.WARNING, console=errors, show_path=False, show_time=False)
    logging.basicConfig(format="%(message)s", handlers=[shown])
    try:
        app()
    except FedloomError as problem:
        print_error(errors, problem)
        raise SystemExit(3 if isinstance(problem, RunStopped) else 2) from None
