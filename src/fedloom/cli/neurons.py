"""`fedloom neurons`: the neurons of a network, and what shares of it cost."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from fedloom.cli.options import pairs_of
from fedloom.errors import BadExperiment


def neurons_command(
    model: Annotated[str, typer.Argument(help="a name from `fedloom list models`, or my_file.py:my_network")],
    shape: Annotated[
        str | None,
        typer.Option(
            help="an input's shape, such as 1x28x28 or 784; by default 3x32x32, 64 words, or signals of 9x128"
        ),
    ] = None,
    classes: Annotated[int, typer.Option(help="output classes")] = 10,
    vocabulary: Annotated[
        int | None, typer.Option(help="words, for networks that read tokens; by default 1000 for these")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="a setting of the model")] = None,
) -> None:
    """Show which neurons MODEL has, which tensors they run through, and what smaller shares of it cost.

    For example `fedloom neurons cnn1 --shape 1x28x28`, or `fedloom neurons transformer`.
    """
    from fedloom.models import example, usual_input
    from fedloom.neurons.table import memory_table, tables, whole_table
    from fedloom.neurons.trace import neuron_map
    from fedloom.runs.experiment import Experiment

    sizes = [] if shape is None else shape.lower().split("x")
    if not all(size.isdigit() and int(size) > 0 for size in sizes):
        raise BadExperiment(f"shape is '{shape}'; expected sizes joined by x, such as 1x28x28.")
    given, settings = None if shape is None else tuple(int(size) for size in sizes), pairs_of(set_ or [])
    numbers, words = usual_input(model, given, vocabulary)
    network = Experiment(model={"name": model, "settings": settings}).build_model(numbers, classes, words)
    inputs = example(numbers, words)
    neurons = neuron_map(network, inputs)
    groups, axes, costs = tables(neurons)
    for table in (groups, axes, whole_table(neurons), costs, memory_table(network, inputs, neurons)):
        Console().print(table)
    if neurons.note is not None:
        Console().print(neurons.note)
