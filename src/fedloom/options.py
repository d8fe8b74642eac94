"""What commands share: their options, how settings are read and how results are printed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite
from typing import Annotated, Any

import typer
from rich.console import Console

from fedloom.errors import BadExperiment

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
StackOption = Annotated[
    bool, typer.Option("--stack/--no-stack", help="train runs together that train alike, or one run after another")
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
