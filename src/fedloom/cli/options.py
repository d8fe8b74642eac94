"""Options of several commands, the reading of settings, and the printing of results and errors."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.text import Text

from fedloom.errors import BadExperiment, FedloomError, RunStopped
from fedloom.runs.checkpoint.saver import checkpoints_of as checkpoints_of

if TYPE_CHECKING:
    from fedloom.runs.experiment import Experiment
    from fedloom.studies.space import Tried

WARNINGS = RichHandler(logging.WARNING, console=Console(stderr=True), show_path=False, show_time=False)
SILENCE = 1.0  # seconds that a silent rank waits before it ends, since torchrun then ends the others too

EngineOption = Annotated[
    str, typer.Option(help="local: the cohort at once; loop: one after another; distributed: under torchrun")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")]
TryOption = Annotated[
    list[str] | None,
    typer.Option(
        "--try",
        metavar="KEY=VALUE,VALUE",
        help="a setting to vary, such as method.budget=0.4,0.6,0.8 or codec.values=bfloat16,int8, for those that take "
        "it; repeat as needed",
    ),
]
ResumeOption = Annotated[
    bool,
    typer.Option(
        "--resume", help="go on with the run in --out; without --out, METHOD is the folder and all settings are its own"
    ),
]
EveryOption = Annotated[
    str,
    typer.Option(
        "--checkpoint-every",
        metavar="WHEN",
        help="when the run is saved: 30s, 5m or 1h, a number of rounds, both joined by a comma (10,5m), or end",
    ),
]
KeepOption = Annotated[
    int, typer.Option(min=1, help="how many of the latest checkpoints are kept, to go back to with `fedloom rollback`")
]
TensorboardOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="write the rounds for TensorBoard too, under this folder")
]
MlflowOption = Annotated[
    str | None, typer.Option(metavar="URI", help="log the rounds with MLflow too: a folder, sqlite:///FILE or a server")
]
WandbOption = Annotated[
    str | None,
    typer.Option(metavar="PROJECT", help="log the rounds with W&B too; WANDB_MODE=offline keeps them on this machine"),
]
StackOption = Annotated[
    bool, typer.Option("--stack/--no-stack", help="train runs together that train alike, or one run after another")
]
StudyOption = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="DIR", help="a folder for the run folders, runs/COMMAND-NUMBER if left out; goes on with one"
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON object at the end and nothing else")]


def note_printer(console: Console) -> Callable[[str], None]:
    """A function that prints notes."""
    return lambda note: console.print(note, style="dim", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def runs_progress(console: Console, title: str, total: int, progress: Any) -> Iterator[Callable[[str, int, Any], None]]:
    """Show progress over several runs; call what it yields with name, seed and row of every round."""
    done = 0
    with progress(console, title, total) as watch:

        def each(name: str, seed: int, row: dict[str, Any]) -> None:
            nonlocal done
            done += 1
            watch({**row, "round": done, "state": f"{name}, seed {seed}"})

        yield each


@contextmanager
def study_folder(console: Console, name: str, out: Path | None) -> Iterator[Path]:
    """The folder of a study's runs; afterwards, or after Ctrl-C, what can be done with it is printed."""
    from fedloom.runs.folder import new_folder

    folder = out or new_folder(name)
    say = note_printer(console)
    try:
        yield folder
    except KeyboardInterrupt:
        again = f"`fedloom sweep --resume {folder}`" if name == "sweep" else f"the same command with --out {folder}"
        say(f"interrupted; what is finished is in {folder}: {again} goes on")
        raise typer.Exit(130) from None
    say(f"run folders are in {folder}: fedloom report {folder}")


def print_json(facts: dict[str, Any]) -> None:
    """Print JSON, with null in place of NaN and infinity, which JSON lacks."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [plain(one) for one in value]
        return None if isinstance(value, float) and not isfinite(value) else value

    typer.echo(json.dumps(plain(facts)))


def pairs_of(texts: list[str], option: str = "--set", example: str = "rate=0.05") -> dict[str, Any]:
    """The arguments of `--set` as a dictionary."""
    from fedloom.runs.settings import parse_value

    pairs: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise BadExperiment(f"{option} got '{text}'; expected KEY=VALUE, such as {example}.")
        read = parse_value(value.strip())
        if pairs.get(key.strip(), read) != read:
            raise BadExperiment(f"{option} got {key.strip()} twice, {pairs[key.strip()]} and {read}; leave one out.")
        pairs[key.strip()] = read
    return pairs


def new_folder_for(experiment: Experiment) -> Path:
    """The first free `runs/METHOD-DATA-NUMBER`."""
    from fedloom.runs.folder import new_folder

    own = experiment.method.own
    name = experiment.method.name if own is None else own.file.stem
    return new_folder(f"{name}-{Path(experiment.data.name).stem}")


def choices_of(texts: list[str], option: str = "--try") -> dict[str, list[Any]]:
    """The arguments of `--try` as a dictionary: the values of each setting."""
    from fedloom.runs.settings import parse_value, split_at_commas

    choices = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not key or not values:
            raise BadExperiment(f"{option} got '{text}'; expected KEY=VALUE,VALUE, such as method.budget=0.4,0.6.")
        try:
            found = list(json.loads(f"[{values}]"))  # values may be lists themselves
        except json.JSONDecodeError:
            try:
                pieces = split_at_commas(values)
            except ValueError:  # a bracket that is no list's
                pieces = [piece.strip() for piece in values.split(",")]
            found = [parse_value(piece) for piece in pieces]
        choices[key.strip()] = found
    return choices


def space_of(texts: list[str]) -> dict[str, Tried]:
    """What `fedloom sweep` is to try: the values of each setting, or a range."""
    from fedloom.studies.space import tried_of

    values, given = choices_of(texts, "sweep"), [text.partition("=") for text in texts]
    return {key.strip(): tried_of(text, values[key.strip()]) for key, _, text in given}


def silence_other_ranks(errors: Console) -> None:
    """Silence all processes under torchrun but rank 0."""
    if os.environ.get("RANK", "0") != "0":
        sys.stdout, errors.quiet = open(os.devnull, "w"), True  # noqa: SIM115  open until the process ends


def print_error(errors: Console, problem: FedloomError) -> None:
    """Print an error once; before the ranks have met, once per machine, since it may concern one machine alone."""
    if os.environ.get("LOCAL_RANK", "0") != "0" or (errors.quiet and isinstance(problem, RunStopped)):
        time.sleep(SILENCE)
        return
    errors.quiet = False
    errors.print(Text.assemble(("error:", "bold red"), f" {problem}"), soft_wrap=True)
