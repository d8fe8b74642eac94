"""What commands share: their options, how settings are read and how results are printed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedloom.errors import BadExperiment

if TYPE_CHECKING:
    from fedloom.checkpoint.saver import Checkpoints

DataOption = Annotated[str, typer.Option(help="a name from `fedloom list data`, or a .npz, .csv or .parquet file")]
PartitionOption = Annotated[str, typer.Option(help="how data are dealt to clients: `fedloom list partitions`")]
ClientsOption = Annotated[int, typer.Option(help="clients in the fleet")]
ModelOption = Annotated[str, typer.Option(help="a name from `fedloom list models`, or my_file.py:my_network")]
FleetOption = Annotated[
    str, typer.Option(help="devices: a name from `fedloom list fleets`, your own .csv or .parquet, or none")
]
RoundsOption = Annotated[int, typer.Option(help="how many rounds")]
SeedOption = Annotated[int, typer.Option(help="the same seed gives the same run")]
EngineOption = Annotated[str, typer.Option(help="local: the cohort at once; loop: one client after another")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="any other setting, such as rate=0.05, epochs=5, method.mu=0.1, partition.alpha=0.5, per_round=20, "
        "channel.up=0.3, world.deadline=60; repeat as needed",
    ),
]
ExactOption = Annotated[
    bool, typer.Option("--exact-bytes", help="write and read every reply's bytes, not one a round's; slower")
]
TryOption = Annotated[
    list[str] | None,
    typer.Option(
        "--try",
        metavar="KEY=VALUE,VALUE",
        help="a setting to vary, such as method.budget=0.4,0.6,0.8 or codec.values=bfloat16,int8, for those that take "
        "it; repeat as needed",
    ),
]
SECONDS = {"s": 1, "m": 60, "h": 3600}
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
JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON object at the end and nothing else")]


@contextmanager
def counted(console: Console, title: str, total: int, progress: Any) -> Iterator[Callable[[str, int, Any], None]]:
    """Progress over several runs: told name, seed and row of every round."""
    done = 0
    with progress(console, title, total) as watch:

        def each(name: str, seed: int, row: dict[str, Any]) -> None:
            nonlocal done
            done += 1
            watch({**row, "round": done, "state": f"{name}, seed {seed}"})

        yield each


def print_json(facts: dict[str, Any]) -> None:
    """JSON has no NaN: null stands there."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [plain(one) for one in value]
        return None if isinstance(value, float) and not isfinite(value) else value

    typer.echo(json.dumps(plain(facts)))


def pairs_of(texts: list[str]) -> dict[str, Any]:
    """`--set` arguments as a dictionary."""
    from fedloom.settings import parse_value

    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise BadExperiment(f"--set got '{text}'; expected KEY=VALUE, such as rate=0.05.")
        pairs[key.strip()] = parse_value(value.strip())
    return pairs


def checkpoints_of(text: str) -> Checkpoints:
    """`--checkpoint-every` as a value."""
    from fedloom.checkpoint.saver import Checkpoints

    rounds, seconds = None, None
    for part in text.replace(" ", "").lower().split(","):
        number, unit = part.rstrip("smh"), part[len(part.rstrip("smh")) :]
        if part == "end":
            continue
        if unit in SECONDS and number.replace(".", "", 1).isdigit():
            seconds = float(number) * SECONDS[unit]
        elif part.isdigit():
            rounds = int(part)
        else:
            raise BadExperiment(f"--checkpoint-every got '{text}'; expected 30s, 5m, 1h, a number of rounds or end.")
    return Checkpoints(rounds, seconds)


def given(context: typer.Context, values: dict[str, Any]) -> dict[str, Any]:
    """Those options that were really typed."""
    sources = {name: context.get_parameter_source(name) for name in values}
    return {
        name: values[name] for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"
    }


def choices_of(texts: list[str]) -> dict[str, list[Any]]:
    """`--try` arguments: the values of each setting."""
    from fedloom.settings import parse_value

    choices = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not key or not values:
            raise BadExperiment(f"--try got '{text}'; expected KEY=VALUE,VALUE, such as method.budget=0.4,0.6.")
        try:
            choices[key.strip()] = list(json.loads(f"[{values}]"))  # values may be lists themselves
        except json.JSONDecodeError:
            choices[key.strip()] = [parse_value(value.strip()) for value in values.split(",")]
    return choices
