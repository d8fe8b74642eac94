"""The command `fedloom states`."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fedloom.cli.options import JsonOption, print_json
from fedloom.errors import BadExperiment

if TYPE_CHECKING:
    from fedloom.flower.node.old_states import Held


def states_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="a node's folder of client states")],
    *,
    older: Annotated[
        float | None, typer.Option(min=0, metavar="DAYS", help="only those that were not written to for so long")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="remove those that --older names")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the client states that a node keeps, run by run, and remove old ones.

    For example `fedloom states /var/lib/fedloom/node-1/clients --older 90 --remove` on the node's machine. If a
    run goes on whose states were removed, its clients begin as new ones.
    """
    from fedloom.flower.node.old_states import DAY, held_in, remove_older

    if remove and older is None:
        raise BadExperiment("--remove needs --older DAYS, such as --older 90; 0 removes all.")
    if remove and older is not None:
        found = remove_older(folder, older)
    else:
        found = [one for one in held_in(folder) if older is None or time.time() - one.written > older * DAY]
    if as_json:
        rows = [{**one._asdict(), "path": str(one.path)} for one in found]
        print_json({"folder": str(folder), "removed": remove, "states": rows})
        return
    Console().print(states_table(f"removed from {folder}" if remove else f"states in {folder}", found))


def states_table(title: str, found: list[Held]) -> Table:
    """A row for each run, and one for each file of weights that runs began with."""
    from fedloom.accel.machine import size

    numbers = (Column(name, justify="right") for name in ("clients", "files", "size"))
    table = Table(Column("run", no_wrap=True), *numbers, "last written", title=title, title_justify="left")
    for one in found:
        when = datetime.fromtimestamp(one.written).astimezone().strftime("%Y-%m-%d %H:%M")
        cells = (one.path.name, str(one.clients or "first weights"), str(one.files), size(one.size), when)
        table.add_row(*(Text(cell) for cell in cells))
    return table
