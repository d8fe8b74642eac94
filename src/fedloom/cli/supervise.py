"""The command `fedloom supervise`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def supervise_command(
    deployment: Annotated[Path, typer.Argument(metavar="DEPLOYMENT", help="the folder that `fedloom deploy` wrote")],
    pause: Annotated[float, typer.Option(min=0.1, help="seconds until a run is started again, the first time")] = 5.0,
) -> None:
    """Start a deployment's run, and start it again until it is finished, whatever stops it.

    For example `fedloom supervise deployment`, on the link's machine, where the run folder is. A run that crashed,
    whose link was started again or whose nodes were away goes on after its last checkpoint, after a pause that doubles
    while nothing is gained. The command ends with the run: exit code 0, also if `flwr stop` ended it, and 2 if a person
    has to mend something. Ctrl-C ends the command and leaves the run going.
    """
    from fedloom.cli.show import progress
    from fedloom.errors import BadExperiment
    from fedloom.flower.deploy.control import Control
    from fedloom.flower.deploy.supervise import Supervisor, read_deployment
    from fedloom.flower.deploy.trial import rounds_reporter

    deployed, console = read_deployment(deployment), Console(highlight=False, soft_wrap=True)
    experiment = deployed.experiment

    def tell(note: str) -> None:
        console.print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {note}", markup=False)

    try:
        with (
            Control(deployed.address, deployed.authority) as control,
            progress(console, experiment.method.name, experiment.rounds, experiment.build_goal().score) as watch,
        ):
            end = Supervisor(deployed, control, tell, rounds_reporter(deployed.out, watch), pause).run()
    except KeyboardInterrupt:
        tell("the run goes on by itself; `fedloom supervise` watches it again, and `flwr stop` ends it")
        raise typer.Exit(130) from None
    if end.state == "refused":
        raise BadExperiment(f"the run cannot go on: {end.why}")
    tell(f"the run is over: {end.why or end.state}")
