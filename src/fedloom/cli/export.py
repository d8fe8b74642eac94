"""The command `fedloom export`: the network that a device holds, as a file for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedloom.cli.options import JsonOption, print_json


def export_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder")],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="FILE", help="ends in .onnx, .pt2 (torch.export) or .pte (ExecuTorch)"),
    ],
    share: Annotated[
        float | None, typer.Option(help="fraction of every layer's neurons that the device can afford, such as 0.5")
    ] = None,
    client: Annotated[
        int | None, typer.Option(help="the client's number, as in clients.parquet: its own model, its own neurons")
    ] = None,
    batch: Annotated[int, typer.Option(help="examples in one call of the exported network")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Write the network that a device of RUN holds, and run the file against PyTorch first.

    For example `fedloom export runs/fjord-digits-1 --share 0.5 --client 7 -o half.onnx`. Nothing is written if the
    answers differ by more than 1e-5 on examples of the test set.
    """
    from fedloom.runs.export import TOLERANCE, export_model

    made = export_model(run, out, share, client, batch=batch)
    if as_json:
        print_json({**made._asdict(), "file": str(made.file)})
        return
    table = Table(show_header=False)
    rows = {
        "file": f"{made.file}, {made.form}, {made.bytes:,} bytes",
        "parameters": f"{made.parameters:,} of {made.whole:,}",
        "input": " x ".join(map(str, made.input)),
        "numbers": f"of round {made.round}" if made.round else "of model.safetensors",
        "checked": f"{made.examples} examples in {made.runtime}: largest difference {made.difference:.1e} "
        f"(allowed {TOLERANCE:.0e} of the largest answer)",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    Console().print(table)
    for note in made.notes:
        Console().print(f"- {note}", markup=False, highlight=False, soft_wrap=True)
