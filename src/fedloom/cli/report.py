"""The commands `fedloom report` and `fedloom watch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="run folders, or a folder of them; shown next to each other"),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="the page")] = Path("report.html"),
    target: Annotated[
        list[float] | None,
        typer.Option(help="score to reach, such as 0.8, shown with its costs; repeat as needed"),
    ] = None,
    title: Annotated[str | None, typer.Option(help="the page's title")] = None,
    png: Annotated[Path | None, typer.Option(metavar="DIR", help="write figures for papers here, as PNG")] = None,
    pdf: Annotated[Path | None, typer.Option(metavar="DIR", help="write figures for papers here, as PDF")] = None,
    latex: Annotated[Path | None, typer.Option(metavar="FILE", help="write a LaTeX table (booktabs) here")] = None,
) -> None:
    """Show runs on one HTML page that needs no network: open it in a browser, print it or send it.

    For example `fedloom report runs/fedavg-digits-1 runs/feddd-digits-1 --target 0.8 -o report.html`. Runs of one
    experiment with several seeds become one line with a band.
    """
    from fedloom.report.figures import check_figures, write_figures
    from fedloom.report.group import read_groups
    from fedloom.report.latex import write_latex
    from fedloom.report.page import check_page, saving, write_page
    from fedloom.report.sections import sections_of
    from fedloom.report.tables import check_targets, own_target

    check_page(out)
    for folder in (png, pdf):
        if folder is not None:
            check_figures(folder)
    groups, notes = read_groups(runs)
    targets = check_targets(groups, target or [])
    sections = sections_of(groups, targets or own_target(groups), chosen=not targets)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    write_page(groups, notes, sections, out, title)
    console.print(f"{out} ({out.stat().st_size / 1e6:.1f} MB)")
    for folder, ending in ((png, "png"), (pdf, "pdf")):
        if folder is not None:
            with saving(folder):
                console.print(f"{len(write_figures(sections, folder, ending))} figures in {folder}")
    if latex is not None:
        with saving(latex):
            write_latex(groups, targets, latex)
        console.print(str(latex))


def watch_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a run that is not over")],
    every: Annotated[float, typer.Option(min=0.1, help="seconds between looks")] = 1.0,
    web: Annotated[bool, typer.Option("--web", help="a page in the browser, for this machine alone")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="of the page; 0: any free one")] = 0,
) -> None:
    """Watch a run: its score, the last rounds, bytes, lost replies and the time left.

    The command only reads the run's folder, whose tables are written every ten seconds, and ends with the run: exit
    code 0 if it finished, 3 if it stopped. On a terminal the view is live, elsewhere each round is a line. With --web
    it is a page, which is there until Ctrl-C.
    """
    from fedloom.cli.watch_view import follow, show_page

    try:
        if web:
            show_page(run, Console(), port)
        finished = follow(run, Console(), every)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if not finished:
        raise typer.Exit(3)
