"""The command `fedloom rollback`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fedloom.cli.options import JsonOption, note_printer, print_json

if TYPE_CHECKING:
    from fedloom.runs.rollback import Kept


def rollback_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder that no run is using")],
    *,
    to: Annotated[
        int | None, typer.Option("--to", metavar="ROUND", help="go back to after this round; later rounds are lost")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Go back to a checkpoint of RUN; without --to, list those that are there.

    For example `fedloom rollback runs/mine --to 40`: model and tables are then as they were after round 40, and
    `fedloom run --resume runs/mine` plays the rounds after it again, to the same bits if nothing is changed. How many
    checkpoints a run keeps is said when it is begun or resumed: `--keep 5`. A run on real nodes takes them back, too.
    """
    from fedloom.runs.folder import resume_command
    from fedloom.runs.rollback import kept_checkpoints, roll_back

    console = Console()
    if to is None:
        found = kept_checkpoints(run)
        if as_json:
            print_json({"run": str(run), "checkpoints": [one._asdict() for one in found]})
        else:
            console.print(checkpoint_table(run, found))
        return
    at = roll_back(run, to)
    again = resume_command(run) or f"fedloom run --resume {run}"
    if as_json:
        print_json({"run": str(run), "resume": again, **at._asdict()})
        return
    note_printer(console)(f"{run} is as it was after round {at.round}; go on with `{again}`")


def checkpoint_table(run: Path, found: list[Kept]) -> Table:
    """The checkpoints of a run."""
    from fedloom.accel.machine import size

    table = Table(
        *("after round", "saved", Column("size", justify="right"), "score", ""), title=f"checkpoints of {run}",
        title_justify="left", caption=f"fedloom rollback {run} --to ROUND", caption_justify="left",
    )  # fmt: skip
    for one in found:
        saved = datetime.fromtimestamp(one.saved).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        score = "" if one.score is None else f"{one.score:.4f}"
        cells = (str(one.round), saved, size(one.size), score, f"damaged: {one.damaged}" if one.damaged else "")
        table.add_row(*(Text(cell) for cell in cells))
    return table
