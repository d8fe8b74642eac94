"""The command `fedloom sweep`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedloom.cli.experiment_options import ExperimentOptions, experiment_options
from fedloom.cli.options import (
    JsonOption,
    StackOption,
    StudyOption,
    note_printer,
    print_json,
    runs_progress,
    space_of,
    study_folder,
)
from fedloom.errors import BadExperiment

errors = Console(stderr=True)


@experiment_options()
def sweep_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="METHOD... KEY=VALUE,VALUE...",
            help="methods, and the values to try for settings; KEY=LOW..HIGH is a range to draw from",
        ),
    ] = None,
    *,
    seeds: Annotated[int, typer.Option(min=1, help="how many seeds, from --seed on")] = 3,
    search: Annotated[str, typer.Option(help="grid: every combination; random; optuna (needs fedloom[tune])")] = "grid",
    trials: Annotated[
        int | None, typer.Option(min=1, help="how many choices of settings each method gets, if not a grid")
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="go on with the sweep in this folder")] = None,
    shared: ExperimentOptions,
    stack: StackOption = True,
    out: StudyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Try settings of METHODS equally, choose on validation examples, and compare the best on the test set.

    For example `fedloom sweep fedavg fedprox scaffold rate=0.01,0.1 method.mu=0.01,0.1,1 --seeds 3`. A setting that
    only some methods have is tried for those. A fifth of each client's training examples is for validation, unless
    `--set split=[0.7,0.2,0.1]` says otherwise. A sweep that was stopped goes on with `fedloom sweep --resume DIR`.
    """
    from fedloom.cli.show import progress
    from fedloom.cli.show_studies import comparison_notes, comparison_rows, comparison_table, sweep_table
    from fedloom.studies.sweep import Asked, asked_in, experiment_at, run_sweep, runs_of

    if resume is not None:
        if words or out is not None:
            raise BadExperiment(
                "--resume DIR goes on with what was swept there; leave out methods, settings and --out."
            )
        asked, out = asked_in(resume), resume
    else:
        methods = tuple(dict.fromkeys(word for word in words or [] if "=" not in word))
        space = space_of([word for word in words or [] if "=" in word])
        every = tuple(range(shared.seed, shared.seed + seeds))
        asked = Asked(methods, space, every, search, trials, shared.values, shared.settings)
    runs, example = runs_of(asked), experiment_at(asked, asked.methods[0], {})
    console, score, total = errors if as_json else Console(), example.build_goal().score, runs * example.rounds
    tell = note_printer(console)
    with (
        study_folder(console, "sweep", out) as folder,
        runs_progress(console, "sweep", total, partial(progress, score=score)) as each,
    ):
        found = run_sweep(asked, each, stack, tell, folder)
    if as_json:
        facts = {"score_name": score.name, "lower_is_better": score.best == "low", "folder": str(folder)}
        print_json({**facts, "cells": found.rows(), "tuned": comparison_rows(found.tuned, None)})
        return
    console.print(sweep_table(found))
    if len(found.best) > 1:
        console.print(comparison_table(found.tuned, None))
    for note in comparison_notes(found.tuned):
        tell(note)
