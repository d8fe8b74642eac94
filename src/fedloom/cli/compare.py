"""The commands `fedloom compare` and `fedloom plan`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from fedloom.cli.experiment_options import ExperimentOptions, experiment_options
from fedloom.cli.options import (
    JsonOption,
    StackOption,
    StudyOption,
    TryOption,
    choices_of,
    note_printer,
    print_json,
    runs_progress,
    study_folder,
)

errors = Console(stderr=True)


@experiment_options()
def compare_command(
    methods: Annotated[list[str], typer.Argument(help="names from `fedloom list methods`; the first is the reference")],
    *,
    target: Annotated[float | None, typer.Option(help="score to reach, such as an accuracy: what did it cost?")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="how many seeds, from --seed on")] = 3,
    shared: ExperimentOptions,
    stack: StackOption = True,
    out: StudyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run METHODS on the same data, fleet, world and seeds, and print one table.

    For example `fedloom compare fedavg fedcs oort --fleet table4 --target 0.8`. A setting that only some methods
    have is given to those that have it, and a note says so. All methods are checked before the first is trained.
    """
    from fedloom.cli.show import progress
    from fedloom.cli.show_studies import comparison_notes, comparison_rows, comparison_table
    from fedloom.evaluate.judge import check_target
    from fedloom.studies.checks import differences, named
    from fedloom.studies.compare import compare
    from fedloom.studies.forms import experiment_of

    pairs, experiments = shared.settings, {}
    for name in methods:
        with named(name):
            experiments[name] = experiment_of(name, shared.values, pairs, methods)
    score = next(iter(experiments.values())).build_goal().score
    if target is not None:
        check_target(score, target)
    console = errors if as_json else Console()
    total = seeds * sum(experiment.rounds for experiment in experiments.values())
    tell, every = note_printer(console), range(shared.seed, shared.seed + seeds)
    for note in differences(experiments, pairs):
        tell(note)
    with (
        study_folder(console, "compare", out) as folder,
        runs_progress(console, "compare", total, partial(progress, score=score)) as each,
    ):
        contenders = compare(experiments, every, each, stack, tell, folder)
    if as_json:
        facts = {"target": target, "score_name": score.name, "lower_is_better": score.best == "low"}
        print_json({**facts, "methods": comparison_rows(contenders, target)})
    else:
        console.print(comparison_table(contenders, target))
        for note in comparison_notes(contenders):
            tell(note)


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
    out: StudyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say which method, codec and settings reach a target on your fleet soonest, and which cheapest.

    For example `fedloom plan --fleet my_devices.csv --model mlp --target 0.8 --try method.budget=0.4,0.6`.
    """
    from fedloom.cli.show import progress
    from fedloom.cli.show_studies import plan_rows, plan_table
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
    with study_folder(console, "plan", out) as folder, runs_progress(console, "plan", total, shown) as each:
        found = plan(experiment, target, chosen, every, CODECS, choices, each, stack, tell, folder)
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
