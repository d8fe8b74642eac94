"""The command `fedloom replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedloom.cli.options import JsonOption, note_printer, print_json
from fedloom.errors import RunStopped

WITHIN = 1e-5  # difference of two models that rounding explains, on other processors or in other batches


def replay_command(
    folder: Annotated[Path, typer.Argument(help="a run folder of Flower, without a barrier between rounds")],
    as_json: JsonOption = False,
) -> None:
    """Play a run on real nodes again in the simulator, in the order in which replies came, and compare the models.

    The order is not the seed's, but everything else is: the same clients, asked at the same versions, whose replies
    count in the same steps, give the same model. Exit code 3 if they do not.
    """
    from fedloom.cli.show import progress
    from fedloom.flower.server.replay import replay
    from fedloom.runs.folder import experiment_in

    console, experiment = Console(stderr=as_json), experiment_in(folder)
    with progress(console, experiment.method.name, experiment.rounds, experiment.build_goal().score) as bar:
        found = replay(folder, bar, note_printer(console))
    if as_json:
        print_json({**found.result.summary(), "difference": found.difference})
    else:
        console.print(f"the largest difference between two numbers of the models is {found.difference:.2g}")
    if not found.difference <= WITHIN:
        raise RunStopped(f"the models differ by {found.difference:.2g}; rounding explains {WITHIN:g}. Was the run cut?")
